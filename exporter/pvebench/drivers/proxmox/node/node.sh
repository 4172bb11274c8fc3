#!/bin/sh
# pvebench-node: the only requests that pvebench may make to a Proxmox VE node over SSH.
# Install it as /usr/local/sbin/pvebench-node, owner root, mode 755, and restrict the key to it:
#   ~pvebench/.ssh/authorized_keys: restrict,command="sudo -n /usr/local/sbin/pvebench-node" KEY
#   sudoers: pvebench ALL=(root) NOPASSWD: /usr/local/sbin/pvebench-node ""
# Requests come on stdin, one word per line; the client's command is ignored. The script reads VM
# counters, and writes back and drops the page cache of pvebench's volumes. It checks its qcow2 files,
# and kills QEMU of a VM with an ownership marker in its description. It creates unprivileged
# containers with such a marker, and starts, stops, removes and runs programs only in those. It
# changes nothing else, and validates every word.
set -eu
export LC_ALL=C PATH=/usr/sbin:/usr/bin:/sbin:/bin
readonly PIDS=/run/qemu-server GROUPS_OF=/sys/fs/cgroup/lxc MACHINES=/etc/pve/qemu-server
readonly CONFIGURATIONS=/etc/pve/lxc NODES=/etc/pve/nodes MOUNTS=/var/lib/lxc
readonly ARCHIVES=/var/cache/pvebench-node TURNS=/run/pvebench-node POINT=/mnt/test VERSION=4 STORAGES=/etc/pve/storage.cfg

refuse() {
    printf 'pvebench-node: %s\n' "$*" >&2
    exit 96
}

# block_devices.sh of drivers/linux is inserted here.

# The shell keeps a line in memory until its end, so a child process with limited memory reads it.
next_word() {
    word=$(ulimit -v 8192 && IFS= read -r line && printf '%.1001s' "$line") || refuse "missing word"
    [ "${#word}" -le 1000 ] || refuse "word too long"
}

number() { # WORD LENGTH
    case $1 in
    '' | *[!0-9]*) refuse "not a number: $1" ;;
    esac
    [ "${#1}" -le "$2" ] || refuse "not a number: $1"
}

hexadecimal() { # WORD LENGTH
    printf '%s\n' "$1" | grep -qE "^[0-9a-f]{$2}\$" || refuse "not $2 hexadecimal digits: $1"
}

name() { # WORD: name of a storage or pool
    printf '%s\n' "$1" | grep -qE '^[A-Za-z][A-Za-z0-9._-]{0,99}$' || refuse "not a name: $1"
}

# A volume name of pvebench, in Proxmox's format STORAGE:[DIRECTORY/]NAME.
volume() {
    case $1 in
    *[!A-Za-z0-9:/._-]* | *..* | -*) refuse "not a volume: $1" ;;
    esac
    printf '%s\n' "$1" |
        grep -qE '^[A-Za-z][A-Za-z0-9._-]*:([0-9]{1,10}/)?vm-[0-9]{1,10}-pvebench-[0-9a-f]{12}-[a-z0-9.-]+$' ||
        refuse "not a volume of pvebench: $1"
    path=$(timeout -k 5 60 pvesm path "$1") || refuse "volume $1 not found"
    follow=
    case $path in
    /dev/*) [ ! -b "$path" ] || return 0 ;;
    esac
    # A link could lead to a file of the node, and a pipe blocks its reader.
    follow=,nofollow
    is_file "$path" || refuse "$1 is not a file or device of this node: $path"
    own_file "$path"
}

is_file() { [ -f "$1" ] && [ ! -L "$1" ]; }

# Proxmox VE creates a volume and its directory as one user (on NFS often not root), under one name.
own_file() { # PATH
    [ "$(stat -c %h:%u -- "$1")" = "1:$(stat -c %u -- "${1%/*}")" ] ||
        refuse "file of another user, or with a second name: $1"
}

# Write back and drop the page cache of a file or device.
drop_path() { # PATH FLAGS
    timeout -k 5 80 dd of="$1" oflag="nocache$2" conv=notrunc,nocreat,fdatasync count=0 status=none </dev/null
}

# Type of a volume's path, and the numbers of its devices.
find_volume() {
    next_word
    volume "$word"
    describe_path "$path" 0
}

drop() {
    next_word
    volume "$word"
    drop_path "$path" "$follow"
    timeout -k 5 25 fincore --bytes --noheadings --output RES -- "$path"
}

# Counters of the node, of a VM (0: none), of block devices (M:N,…; 0:0: none) and of a container.
look() {
    next_word
    vmid=$word
    number "$vmid" 10
    next_word
    case $word in *[!0-9:,]*) refuse "not a list of devices: $word" ;; esac
    set --
    for device in $(printf '%s\n' "$word" | tr , ' '); do
        number "${device%%:*}" 4
        number "${device#*:}" 8
        set -- "$@" "/sys/dev/block/$device/stat"
    done
    next_word
    number "$word" 10
    set -- "$@" /proc/stat /proc/pressure/cpu /proc/pressure/io /proc/pressure/memory \
        /proc/mdstat "$GROUPS_OF/$word/cpu.stat"
    pid=$(cat "$PIDS/$vmid.pid" 2>/dev/null) || pid=
    if is_vm "$pid" "$vmid"; then
        set -- "$@" "$PIDS/$vmid.pid" "/proc/$pid/stat" "/proc/$pid/io" \
            "/proc/$pid/task/"*/stat "/proc/$pid/task/"*/comm "/proc/$pid/task/"*/schedstat \
            "/sys/kernel/debug/kvm/$pid-"*/exits
    fi
    grep -saHZ '' -- "$@" || :
}

# The process ID in the file may have been reused.
is_vm() { # PID VMID
    case $1 in
    '' | *[!0-9]*) return 1 ;;
    esac
    tr '\0' ' ' <"/proc/$1/cmdline" 2>/dev/null | grep -qE "(^| )-id $2 "
}

# Kill QEMU of pvebench's VM, as a crash or the OOM killer does; wait until its writes have ended. All
# proofs are of this moment: marker and tag of the VM on this node, and the command line and start
# time of the process, as another one may have its ID, or the VM was restarted. qemu-server writes the
# description as comments, too (`write_vm_config` in PVE/QemuServer.pm).
kill_vm() {
    named
    configuration=$MACHINES/$vmid.conf
    next_word
    number "$word" 19
    is_marked || refuse "VM $vmid not changed: not found, or without this marker and tag"
    pid=$(cat "$PIDS/$vmid.pid" 2>/dev/null) || pid=
    is_vm "$pid" "$vmid" || refuse "VM $vmid does not run"
    [ "$(process_field 20)" = "$word" ] || refuse "VM $vmid was restarted"
    kill -KILL "$pid"
    for _ in $(seq 300); do
        case $(process_field 1) in '' | Z) return 0 ;; esac
        sleep 0.1
    done
    refuse "VM $vmid does not end"
}

# Field of /proc/PID/stat after the name, which may have blanks.
process_field() { sed 's/.*) //' "/proc/$pid/stat" 2>/dev/null | cut -d ' ' -f "$1"; }

# Print the exit code of qemu-img for a qcow2 file. A block device is not opened: its content could be
# that of a raw volume, and then the guest's.
check_image() {
    next_word
    volume "$word"
    case $follow$path in ,nofollow*.qcow2) ;; *) refuse "not a qcow2 file: $word" ;; esac
    timeout -k 5 50 qemu-img check -q -f qcow2 -- "$path" >/dev/null && code=0 || code=$?
    echo "$code"
}

# State of the devices below the storages, for the evidence of a run.
state() {
    part md cat /proc/mdstat
    part zpool zpool list -H -o name,size,allocated,free,fragmentation,capacity,health
    part scrub zpool status
    part arc grep -E '^(size|c_max|hits|misses|compressed_size) ' /proc/spl/kstat/zfs/arcstats
    part dm dmsetup status
    part smart smart
}

# Options of a storage that affect its speed, one per line, from ZFS, LVM or the mount.
options() {
    next_word
    name "$word"
    storage=$word
    # An empty response means no values, so a failure must not look like one. 127: no such program.
    values=$(values_of_storage 2>/dev/null) || [ $? = 127 ] || refuse "options of storage $storage: reading failed"
    printf '%s\n' "$values" | head -c 2000
}

values_of_storage() {
    kind=$(of_storage) || return
    case $kind in
    zfspool) zfs_options "$(of_storage pool)" ;;
    lvmthin) thin_options "$(of_storage vgname)/$(of_storage thinpool)" ;;
    dir | btrfs) mount_options --target "$(of_storage path)" ;;
    nfs | cifs) mount_options --mountpoint "$(of_storage path)" ;; # not those of the directory below
    esac
}

# Value of a key of storage `storage`; without a key its type.
of_storage() { # [KEY]
    awk -v id="$storage" -v key="${1-}" '
        /^[a-z]+:/ { ours = $2 == id; if (ours && key == "") { sub(":.*", ""); print; exit } }
        ours && /^[ \t]/ && $1 == key { sub(/^[ \t]+[^ \t]+[ \t]+/, ""); print; exit }' "$STORAGES"
}

zfs_options() { # DATASET or path
    timeout -k 5 10 zfs get -H -o property,value -- \
        sync,primarycache,secondarycache,compression,recordsize,logbias "$1"
}

thin_options() { # VG/POOL
    thin=$(timeout -k 5 10 lvs --noheadings --units k -o chunk_size,zero,discards -- "$1") || return
    printf '%s\n' "$thin" |
        sed -nE 's/^ *([0-9.]+k) +([a-z]+) +([a-z]+) *$/chunk_size \1\nzero \2\ndiscards \3/p'
}

mount_options() { # OPTION PATH
    mounted=$(timeout -k 5 10 findmnt --noheadings --raw --output FSTYPE,OPTIONS "$1" "${2:-/mnt/pve/$storage}") || return
    case $mounted in
    'zfs '*) zfs_options "$2" ;;
    *) printf '%s\n' "$mounted" ;;
    esac
}

smart() {
    for disk in /sys/block/*/device; do
        name=${disk#/sys/block/}
        smartctl -H -A "/dev/${name%/device}" | grep -E 'result|Wear|Percentage Used|Temperature|Realloc'
    done
}

part() { # NAME COMMAND…
    echo "== $1"
    shift
    { "$@" 2>/dev/null || echo "not available"; } | head -c 8000
}

# A container of pvebench by ID and marker: sets `vmid`, `mark` and `configuration`.
named() {
    next_word
    vmid=$word
    number "$vmid" 9
    next_word
    mark=$word
    hexadecimal "$mark" 32
    configuration=$CONFIGURATIONS/$vmid.conf
}

ours() {
    named
    is_ours || refuse "container $vmid not changed: not found, or without this marker and tag"
    leave_foreign
    thaw
}

# pct writes the description as comments, with ':' as %3A (`write_pct_config` in PVE/LXC/Config.pm of
# pve-container). The file is read directly, as `pct config` would start Perl for each request. A
# privileged copy is not accepted: root in it is root on the node.
is_ours() {
    is_marked && settings | grep -qxF 'unprivileged: 1' && ! settings | grep -q '^template: 1'
}

is_marked() {
    settings | grep -qxF "#pvebench-mark%3A $mark" &&
        settings | grep -qE '^tags: (.*;)?pvebench(;|$)'
}

# A foreign volume could be read and changed in the container, and pct destroys it with the container,
# even if the change is pending (`destroy_lxc_container` in PVE/LXC.pm).
leave_foreign() {
    if foreign=$(grep -E '^(mp[1-9][0-9]*|unused[0-9]+): ' "$configuration"); then
        refuse "container $vmid not changed: foreign volume $(printf '%s\n' "$foreign" | head -n 1)"
    fi
}

# Effective configuration, without the sections of snapshots and pending changes.
settings() { sed '/^\[/,$d' "$configuration" 2>/dev/null; }

setting() { settings | sed -n "s/^$1: //p" | head -n 1; }

# Process ID of the first process of container `vmid`; empty if it does not run.
first_process() { lxc-info -n "$vmid" -p -H 2>/dev/null | grep -xE '[1-9][0-9]*' || :; }

# Path of the mount point's volume from Proxmox; empty if it has none.
volume_path() {
    mounted=$(setting mp0)
    found=$(pvesm path "${mounted%%,*}" 2>/dev/null) || return 0
    [ ! -e "$found" ] || printf '%s\n' "$found"
}

# pct exits with 255 if its task failed (`$upid_exit` in PVE/CLI/pct.pm). Its output names files of the
# archive, so only the end is kept, with the exit code as the last line.
pct_does() {
    output=$({ pct "$@" </dev/null 2>&1 && code=0 || code=$?; printf '\n%s\n' "$code"; } | tail -c 2000)
    [ "${output##*[!0-9]}" = 0 ] ||
        refuse "pct $1 $2: $(printf '%s\n' "$output" | grep . | tail -n 2 | head -n 1)"
}

# Print whether the archive of a root file system exists.
has_archive() {
    next_word
    hexadecimal "$word" 64
    if [ -f "$ARCHIVES/$word.tar.gz" ]; then echo there; else echo absent; fi
}

# Store such an archive, named by its digest; archives unused for a day are deleted.
take_archive() {
    next_word
    digest=$word
    hexadecimal "$digest" 64
    next_word
    number "$word" 9
    [ "$word" -le 300000000 ] || refuse "archive too large: $word bytes"
    umask 077
    mkdir -p "$ARCHIVES"
    exec 9<"$ARCHIVES"
    flock 9 # until this archive is counted too
    # coming-* files without changes for longer than the sender's time limit are interrupted uploads
    find "$ARCHIVES" -type f \( -mmin +1440 -o -name 'coming-*' -mmin +15 \) -delete
    [ "$(find "$ARCHIVES" -type f | wc -l)" -lt 5 ] || refuse "five archives already exist"
    coming=$(mktemp "$ARCHIVES/coming-XXXXXXXX")
    exec 9<&-
    trap 'rm -f "$coming"' EXIT
    head -c "$word" >"$coming"
    echo "$digest  $coming" | sha256sum --check --status || refuse "digest of the archive differs from $digest"
    sync "$coming" # the name must match the content, even after a power failure
    mv "$coming" "$ARCHIVES/$digest.tar.gz"
}

# A container is created only once, and not after a client that lost the response cancelled it:
# removal waits for creation and records the cancellation in the file that both lock.
begin_making() {
    take_turn
    [ ! -s "$TURNS/$mark" ] || refuse "container $vmid was created or cancelled before"
    echo made >"$TURNS/$mark"
}

call_off() {
    take_turn
    echo off >"$TURNS/$mark"
}

# Programs that this script starts inherit the lock and may outlive the script. Files without a lock
# and unused for a day are deleted, as /run is memory.
take_turn() {
    (umask 077 && mkdir -p "$TURNS")
    find "$TURNS" -type f ! -name '*.frozen' -mmin +1440 -exec flock -n {} rm -f {} \;
    [ -e "$TURNS/$mark" ] || is_ours || has_room
    touch "$TURNS/$mark"
    exec 9>>"$TURNS/$mark"
    flock -w 300 9 || refuse "container $vmid is still being made or looked at"
}

# Existing containers can always be removed, even if there are too many of these files.
has_room() {
    [ "$(find "$TURNS" -type f ! -name '*.frozen' | wc -l)" -lt 2000 ] ||
        refuse "limit of 2000 containers per day reached"
}

# A request that was killed during a page cache check leaves the container frozen, and a note of that.
# Nothing in it would ever end. A running check is waited for.
thaw() {
    [ -e "$TURNS/$mark.frozen" ] || return 0
    take_turn
    thaw_in_turn
    exec 9>&-
}

# The lock may have been held by a request that was killed.
thaw_in_turn() {
    [ ! -e "$TURNS/$mark.frozen" ] || end_freeze
}

end_freeze() {
    lxc-unfreeze -n "$vmid" || [ -z "$(first_process)" ] || refuse "thawing container $vmid failed"
    rm -f "$TURNS/$mark.frozen"
}

# Unprivileged, so that root in it has no rights on the node; without network; volumes made by pct.
make_container() {
    named
    next_word
    digest=$word
    hexadecimal "$digest" 64
    next_word
    memory=$word
    number "$memory" 7
    next_word
    cores=$word
    number "$cores" 4
    next_word
    storage=$word
    name "$storage"
    next_word
    gibibytes=$word
    printf '%s\n' "$gibibytes" | grep -qE '^[0-9]{1,6}(\.[0-9]{1,10})?$' || refuse "not a size: $word"
    next_word
    root=$word
    name "$root"
    next_word
    name "$word"
    begin_making
    [ ! -e "$configuration" ] || refuse "container $vmid already exists"
    archive=$ARCHIVES/$digest.tar.gz
    [ -f "$archive" ] || refuse "archive $digest not found"
    touch "$archive"
    pct_does create "$vmid" "$archive" --unprivileged 1 --ostype unmanaged --hostname pvebench \
        --memory "$memory" --swap 0 --cores "$cores" --onboot 0 --pool "$word" --tags pvebench \
        --rootfs "$root:1" --mp0 "$storage:$gibibytes,mp=$POINT,backup=0" \
        --description "Benchmark container, removed automatically by pvebench: do not store data here.

pvebench-mark: $mark"
}

start_container() {
    ours
    [ -n "$(first_process)" ] || pct_does start "$vmid"
}

stop_container() {
    ours
    [ -z "$(first_process)" ] || pct_does stop "$vmid"
}

# Remove a container with its volumes, unless it has a foreign one; do nothing if it is gone.
remove_container() {
    named
    call_off
    if [ ! -e "$configuration" ]; then
        moved=$(grep -lxF "#pvebench-mark%3A $mark" "$NODES"/*/lxc/"$vmid.conf" 2>/dev/null) || {
            rm -f "$TURNS/$mark.frozen"
            return 0
        }
        refuse "container $vmid is on another node: $moved"
    fi
    is_ours || refuse "container $vmid not changed: without this marker and tag"
    leave_foreign
    thaw_in_turn
    [ -z "$(first_process)" ] || pct_does stop "$vmid"
    unmount_left
    pct_does destroy "$vmid" --purge 1
}

# Unmount the file systems of a pct that was killed near the end of creation (`create_vm` in
# PVE/API2/LXC.pm): otherwise its volumes stay in use. A lock means that another program works with
# it. Only mounts that the kernel lists are unmounted, so that no link leads elsewhere; nothing runs
# in the container.
unmount_left() {
    [ -z "$(setting lock)" ] || return 0
    for place in "$MOUNTS/$vmid/rootfs$POINT" "$MOUNTS/$vmid/rootfs"; do
        if cut -d ' ' -f 5 /proc/self/mountinfo | grep -qxF "$place"; then
            umount --no-canonicalize --detach-loop "$place" || refuse "$place is in use"
        fi
    done
}

# Print whether a container is gone, in creation, foreign or owned; for owned ones, its properties.
tell_container() {
    named
    if [ ! -e "$configuration" ]; then
        echo gone
    elif is_ours; then
        echo ours
        settings | grep -E '^(lock|rootfs|mp0|memory|cores|cpulimit): ' || :
        tell_process "$(first_process)"
    elif [ "$(setting lock)" = create ]; then
        echo making
    else
        echo stranger
    fi
}

tell_process() { # PID
    [ -n "$1" ] || return 0
    echo "pid: $1"
    sed -n 's/^Cpus_allowed_list:[[:space:]]*/cpus: /p' "/proc/$1/status" ||
        refuse "container $vmid just stopped"
    echo "limit: $(cat "$GROUPS_OF/$vmid/memory.max" 2>/dev/null || :)"
    mount=$(grep -F " $POINT " "/proc/$1/mountinfo" | tail -n 1 | head -c 4000)
    device=/sys/dev/block/$(printf '%s\n' "$mount" | cut -d ' ' -f 3)
    printf 'mount: %s\n' "$mount" # echo would expand \012 in names from the container
    echo "sectors: $(cat "$device/size" 2>/dev/null)"
    echo "direct: $(cat "$device/loop/dio" 2>/dev/null || echo 1)"
    below=$(volume_path)
    echo "below: $([ -z "$below" ] || describe_path "$below" 0)"
}

# List containers with a marker: ID, marker, status.
list_containers() {
    for configuration in "$CONFIGURATIONS"/*.conf; do
        mark=$(settings | sed -nE 's/^#pvebench-mark%3A ([0-9a-f]{32})$/\1/p' | head -n 1)
        vmid=${configuration##*/}
        vmid=${vmid%.conf}
        if [ -n "$mark" ] && is_ours; then
            echo "$vmid $mark $([ -n "$(first_process)" ] && echo running || echo stopped)"
        fi
    done
}

# Run a program in a container as `pct exec --keep-env 0` does, but without Perl: this request is
# frequent during measurements. The rest of stdin is the program's input. A program that ignores TERM
# is killed inside the container: lxc-attach alone would leave it running.
run_inside() {
    ours
    next_word
    seconds=$word
    number "$seconds" 5
    case $seconds in 0*) refuse "not a time limit in seconds: $seconds" ;; esac
    next_word
    number "$word" 5
    command=$(head -c "$word")
    exec timeout -k 5 "$seconds" lxc-attach -n "$vmid" --clear-env -- \
        /bin/busybox timeout -s KILL "$((seconds + 2))" \
        /bin/busybox env PATH=/usr/bin:/usr/sbin:/bin:/sbin sh -c "$command"
}

# Write back and drop the page cache of a container's files, and of the file that contains them;
# print the bytes still cached. Root opens them by paths in the container, which is frozen meanwhile,
# so that no program in it can insert a link or a pipe. A link above would lead to files of the node.
drop_inside() {
    ours
    [ -n "$(first_process)" ] || refuse "container $vmid does not run"
    take_turn # a request whose response was lost may still be running
    thaw_in_turn
    timeout -k 5 80 lxc-attach -n "$vmid" --clear-env -- /bin/busybox find "$POINT" -name lost+found -prune \
        -o -type f -exec /bin/dd of={} oflag=nocache conv=notrunc,nocreat,fdatasync count=0 status=none \; \
        </dev/null >/dev/null 9>&- || refuse "dropping cached files of container $vmid failed"
    path=$(volume_path)
    set --
    if is_file "$path"; then
        own_file "$path"
        drop_path "$path" ,nofollow
        set -- "$path"
    fi
    trap end_freeze EXIT
    trap 'exit 143' HUP INT TERM # otherwise the EXIT trap does not run
    : >"$TURNS/$mark.frozen"
    timeout -k 5 10 lxc-freeze -n "$vmid" || refuse "freezing container $vmid failed"
    root=/proc/$(first_process)/root
    if [ -L "$root${POINT%/*}" ] || [ -L "$root$POINT" ]; then
        refuse "$POINT of container $vmid is a link"
    fi
    cached=$(timeout 25 find "$root$POINT" "$@" -xdev -type f -exec \
        fincore --bytes --noheadings --output RES -- {} +) ||
        refuse "counting the cached bytes of container $vmid failed"
    printf '%s\n' "$cached" | awk '{ sum += $1 } END { print sum + 0 }'
}

hello() {
    echo "pvebench-node $VERSION"
    for program in fincore pvesm zpool smartctl dmsetup pct; do
        if command -v "$program" >/dev/null; then echo "has $program"; fi
    done
    if [ -r /sys/kernel/debug/kvm ]; then echo "has kvm"; fi
}

next_word
case $word in
hello | look | drop | state | options) "$word" ;;
find) find_volume ;;
kill) kill_vm ;;
check) check_image ;;
archive) has_archive ;;
send) take_archive ;;
make) make_container ;;
start) start_container ;;
stop) stop_container ;;
remove) remove_container ;;
container) tell_container ;;
containers) list_containers ;;
run) run_inside ;;
forget) drop_inside ;;
*) refuse "no such question" ;;
esac

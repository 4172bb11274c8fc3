#!/bin/sh
# pvebench-node: what pvebench may ask of a Proxmox VE node by ssh, and nothing else.
#
# Install it as /usr/local/sbin/pvebench-node, owner root, mode 755, and let the key run only it:
#   ~pvebench/.ssh/authorized_keys: restrict,command="sudo -n /usr/local/sbin/pvebench-node" KEY
#   sudoers: pvebench ALL=(root) NOPASSWD: /usr/local/sbin/pvebench-node ""
#
# The question comes on stdin, a word a line; what the client wants to run is ignored. It reads
# counters of VMs, and writes back and drops the page cache of volumes that pvebench made. It makes
# unprivileged containers with a mark in their description, and starts, stops and removes those that
# have it and runs programs in them. It changes nothing else, and what it is asked about must look
# like what it is.
set -eu
export LC_ALL=C PATH=/usr/sbin:/usr/bin:/sbin:/bin
readonly PIDS=/run/qemu-server GROUPS_OF=/sys/fs/cgroup/lxc
readonly CONFIGURATIONS=/etc/pve/lxc NODES=/etc/pve/nodes MOUNTS=/var/lib/lxc
readonly ARCHIVES=/var/cache/pvebench-node TURNS=/run/pvebench-node POINT=/mnt/test VERSION=3

refuse() {
    printf 'pvebench-node: %s\n' "$*" >&2
    exit 96
}

# below.sh of drivers/storages is inserted here.

next_word() {
    word=
    IFS= read -r word || refuse "a word is missing"
    [ "${#word}" -le 1000 ] || refuse "a word is too long"
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

name() { # WORD, of a storage or pool
    printf '%s\n' "$1" | grep -qE '^[A-Za-z][A-Za-z0-9._-]{0,99}$' || refuse "not a name: $1"
}

# A volume's name as pvebench makes it, in Proxmox's own form: STORAGE:[DIRECTORY/]NAME.
volume() {
    case $1 in
    *[!A-Za-z0-9:/._-]* | *..* | -*) refuse "not a volume: $1" ;;
    esac
    printf '%s\n' "$1" |
        grep -qE '^[A-Za-z][A-Za-z0-9._-]*:([0-9]{1,10}/)?vm-[0-9]{1,10}-pvebench-[0-9a-f]{12}-[a-z0-9.-]+$' ||
        refuse "not a volume of pvebench: $1"
    path=$(pvesm path "$1") || refuse "$1 is not there"
    [ -e "$path" ] || refuse "$1 is no file or device of this node: $path"
}

# What a path is; the numbers of its device, or of those that it lies on.
find_volume() {
    next_word
    volume "$word"
    tell_path "$path" 0
}

drop() {
    next_word
    volume "$word"
    dd of="$path" oflag=nocache conv=notrunc,nocreat,fdatasync count=0 status=none </dev/null
    fincore --bytes --noheadings --output RES -- "$path"
}

# Counters of the node, of a VM (0: of none), of block devices (M:N,…; 0:0: of none) and of a
# container.
look() {
    next_word
    vmid=$word
    number "$vmid" 10
    next_word
    case $word in *[!0-9:,]*) refuse "no devices: $word" ;; esac
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

# The number in the file may be another process's by now.
is_vm() { # PID VMID
    case $1 in
    '' | *[!0-9]*) return 1 ;;
    esac
    tr '\0' ' ' <"/proc/$1/cmdline" 2>/dev/null | grep -qE "(^| )-id $2 "
}

# State of what lies below the storages, for the evidence of a run.
state() {
    part md cat /proc/mdstat
    part zpool zpool list -H -o name,size,allocated,free,fragmentation,capacity,health
    part scrub zpool status
    part arc grep -E '^(size|c_max|hits|misses|compressed_size) ' /proc/spl/kstat/zfs/arcstats
    part dm dmsetup status
    part smart smart
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

# A container of pvebench, by number and mark: `vmid`, `mark`, and its `configuration`.
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
    is_ours || refuse "container $vmid is left alone: it is not there, or without this mark and tag"
    leave_foreign
    thaw
}

# pct writes the description as comments, with ':' as %3A (`write_pct_config` in PVE/LXC/Config.pm of
# pve-container). The file is read, not `pct config`: that would start a perl for each question.
# A copy that somebody made privileged is not ours: root in it is root here.
is_ours() {
    settings | grep -qxF "#pvebench-mark%3A $mark" &&
        settings | grep -qE '^tags: (.*;)?pvebench(;|$)' &&
        settings | grep -qxF 'unprivileged: 1' &&
        ! settings | grep -q '^template: 1'
}

# A volume that somebody gave it may be read and changed in it, and pct destroys it with it: those
# of pending changes too (`destroy_lxc_container` in PVE/LXC.pm).
leave_foreign() {
    if foreign=$(grep -E '^(mp[1-9][0-9]*|unused[0-9]+): ' "$configuration"); then
        refuse "container $vmid is left alone: not ours in it is $(printf '%s\n' "$foreign" | head -n 1)"
    fi
}

# What is in force; sections of snapshots and pending changes follow.
settings() { sed '/^\[/,$d' "$configuration" 2>/dev/null; }

setting() { settings | sed -n "s/^$1: //p" | head -n 1; }

# Number of the first process of container `vmid`; nothing where it does not run.
first_process() { lxc-info -n "$vmid" -p -H 2>/dev/null | grep -xE '[1-9][0-9]*' || :; }

# Where the volume of the mount point is, by the way of Proxmox; nothing where it has no path.
volume_path() {
    mounted=$(setting mp0)
    found=$(pvesm path "${mounted%%,*}" 2>/dev/null) || return 0
    [ ! -e "$found" ] || printf '%s\n' "$found"
}

# pct ends with 255 when its task did not end well (`$upid_exit` in PVE/CLI/pct.pm).
pct_does() {
    said=$(pct "$@" </dev/null 2>&1) ||
        refuse "pct $1 $2: $(printf '%s\n' "$said" | grep . | tail -n 1)"
}

# Whether the archive of a root file system is there.
has_archive() {
    next_word
    hexadecimal "$word" 64
    if [ -f "$ARCHIVES/$word.tar.gz" ]; then echo there; else echo absent; fi
}

# Take such an archive, whose name is its digest; what nobody used for a day goes.
take_archive() {
    next_word
    digest=$word
    hexadecimal "$digest" 64
    next_word
    number "$word" 9
    [ "$word" -le 300000000 ] || refuse "an archive of $word bytes is too large"
    umask 077
    mkdir -p "$ARCHIVES"
    exec 9<"$ARCHIVES"
    flock 9 # until this one is counted too
    # what is named so was broken off where nothing was added to it for longer than its sender waits
    find "$ARCHIVES" -type f \( -mmin +1440 -o -name 'coming-*' -mmin +15 \) -delete
    [ "$(find "$ARCHIVES" -type f | wc -l)" -lt 5 ] || refuse "there are five archives already"
    coming=$(mktemp "$ARCHIVES/coming-XXXXXXXX")
    exec 9<&-
    trap 'rm -f "$coming"' EXIT
    head -c "$word" >"$coming"
    echo "$digest  $coming" | sha256sum --check --status || refuse "not the archive $digest"
    sync "$coming" # its name says what is in it, after a power cut too
    mv "$coming" "$ARCHIVES/$digest.tar.gz"
}

# A container is made but once, and not after somebody who lost the answer has called it off: who
# removes waits for who makes, and says so in the file whose lock both take.
begin_making() {
    take_turn
    [ ! -s "$TURNS/$mark" ] || refuse "container $vmid was made or called off before"
    echo made >"$TURNS/$mark"
}

call_off() {
    take_turn
    echo off >"$TURNS/$mark"
}

# Nobody else may hold such a lock; what this calls has it too, and may outlive this. What nobody
# used for a day, nor holds, nobody waits for any more: /run is memory.
take_turn() {
    (umask 077 && mkdir -p "$TURNS")
    find "$TURNS" -type f ! -name '*.frozen' -mmin +1440 -exec flock -n {} rm -f {} \;
    [ -e "$TURNS/$mark" ] || is_ours || has_room
    touch "$TURNS/$mark"
    exec 9>>"$TURNS/$mark"
    flock -w 300 9 || refuse "container $vmid is still being made or looked at"
}

# What is there can always be removed, whoever filled the memory of those that were.
has_room() {
    [ "$(find "$TURNS" -type f ! -name '*.frozen' | wc -l)" -lt 2000 ] ||
        refuse "there were 2000 containers today already"
}

# Who is killed while it looks at a container's files leaves it frozen, and a note of that. Nothing
# would ever end in it then. Who still looks is waited for.
thaw() {
    [ -e "$TURNS/$mark.frozen" ] || return 0
    take_turn
    thaw_in_turn
    exec 9>&-
}

# Who waited for the turn may have waited for one who was killed.
thaw_in_turn() {
    [ ! -e "$TURNS/$mark.frozen" ] || end_freeze
}

end_freeze() {
    lxc-unfreeze -n "$vmid" || [ -z "$(first_process)" ] || refuse "container $vmid cannot be thawed"
    rm -f "$TURNS/$mark.frozen"
}

# Unprivileged, so that root in it is nobody here; without network; its volumes are pct's own.
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
    [ -f "$archive" ] || refuse "the archive $digest is not there"
    touch "$archive"
    pct_does create "$vmid" "$archive" --unprivileged 1 --ostype unmanaged --hostname pvebench \
        --memory "$memory" --swap 0 --cores "$cores" --onboot 0 --pool "$word" --tags pvebench \
        --rootfs "$root:1" --mp0 "$storage:$gibibytes,mp=$POINT,backup=0" \
        --description "Benchmark container of pvebench. It is removed automatically: keep nothing here.

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

# With its volumes; not with one that somebody gave it. One that is gone is fine.
remove_container() {
    named
    call_off
    if [ ! -e "$configuration" ]; then
        moved=$(grep -lxF "#pvebench-mark%3A $mark" "$NODES"/*/lxc/"$vmid.conf" 2>/dev/null) || {
            rm -f "$TURNS/$mark.frozen"
            return 0
        }
        refuse "container $vmid is another node's now: $moved"
    fi
    is_ours || refuse "container $vmid is left alone: it does not carry this mark and tag"
    leave_foreign
    thaw_in_turn
    [ -z "$(first_process)" ] || pct_does stop "$vmid"
    unmount_left
    pct_does destroy "$vmid" --purge 1
}

# What a pct has mounted that was killed when its making was nearly done (`create_vm` in
# PVE/API2/LXC.pm): its volumes are in use else. Where there is a lock, somebody works with it. Only
# what the kernel names, so that no link in it leads elsewhere: nobody in it runs.
unmount_left() {
    [ -z "$(setting lock)" ] || return 0
    for place in "$MOUNTS/$vmid/rootfs$POINT" "$MOUNTS/$vmid/rootfs"; do
        if cut -d ' ' -f 5 /proc/self/mountinfo | grep -qxF "$place"; then
            umount --no-canonicalize --detach-loop "$place" || refuse "$place is in use"
        fi
    done
}

# Whether a container is there, being made, somebody's, or ours; of ours what it is.
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
        refuse "container $vmid has just ended"
    echo "limit: $(cat "$GROUPS_OF/$vmid/memory.max" 2>/dev/null || :)"
    mount=$(grep -F " $POINT " "/proc/$1/mountinfo" | tail -n 1)
    device=/sys/dev/block/$(printf '%s\n' "$mount" | cut -d ' ' -f 3)
    printf 'mount: %s\n' "$mount" # echo would make lines of what the container names \012
    echo "sectors: $(cat "$device/size" 2>/dev/null)"
    echo "direct: $(cat "$device/loop/dio" 2>/dev/null || echo 1)"
    below=$(volume_path)
    echo "below: $([ -z "$below" ] || tell_path "$below" 0)"
}

# Every container with a mark: its number, the mark, whether it runs.
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

# A program in a container, as `pct exec --keep-env 0` starts it, but without that one's perl: this
# is asked often, while the node is measured. What follows the command on stdin is the program's.
# One that ignores the signal to end is killed where it is: lxc-attach alone would leave it there.
run_inside() {
    ours
    next_word
    seconds=$word
    number "$seconds" 5
    case $seconds in 0*) refuse "a program has to have an end, in seconds: $seconds" ;; esac
    next_word
    number "$word" 5
    command=$(head -c "$word")
    exec timeout -k 5 "$seconds" lxc-attach -n "$vmid" --clear-env -- \
        /bin/busybox timeout -s KILL "$((seconds + 2))" \
        /bin/busybox env PATH=/usr/bin:/usr/sbin:/bin:/sbin sh -c "$command"
}

# Write back and forget what is cached of a container's files, and of a file that they lie in; tell
# how much stays. Root looks at them by the container's own paths, so nobody in it may put a link or
# a pipe into the way meanwhile: it is frozen. A link above would lead to files of the node.
drop_inside() {
    ours
    [ -n "$(first_process)" ] || refuse "container $vmid does not run"
    take_turn # one whose answer was lost may look still
    thaw_in_turn
    timeout -k 5 80 lxc-attach -n "$vmid" --clear-env -- /bin/busybox find "$POINT" -name lost+found -prune \
        -o -type f -exec /bin/dd of={} oflag=nocache conv=notrunc,nocreat,fdatasync count=0 status=none \; \
        </dev/null >/dev/null 9>&- || refuse "files of container $vmid cannot be put out of the cache"
    path=$(volume_path)
    set --
    if [ -f "$path" ]; then
        dd of="$path" oflag=nocache conv=notrunc,nocreat,fdatasync count=0 status=none </dev/null
        set -- "$path"
    fi
    trap end_freeze EXIT
    trap 'exit 143' HUP INT TERM # else nothing is run at the end
    : >"$TURNS/$mark.frozen"
    timeout -k 5 10 lxc-freeze -n "$vmid" || refuse "container $vmid cannot be frozen"
    root=/proc/$(first_process)/root
    if [ -L "$root${POINT%/*}" ] || [ -L "$root$POINT" ]; then
        refuse "$POINT of container $vmid is a link"
    fi
    cached=$(timeout 25 find "$root$POINT" "$@" -xdev -type f -exec \
        fincore --bytes --noheadings --output RES -- {} +) ||
        refuse "what is cached of container $vmid cannot be counted"
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
hello | look | drop | state) "$word" ;;
find) find_volume ;;
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

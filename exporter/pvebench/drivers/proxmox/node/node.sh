#!/bin/sh
# pvebench-node: the only requests that pvebench may make to a Proxmox VE node over SSH.
# Install it as /usr/local/sbin/pvebench-node, owner root, mode 755, and restrict the key to it:
#   ~pvebench/.ssh/authorized_keys: restrict,command="sudo -n /usr/local/sbin/pvebench-node" KEY
#   sudoers: pvebench ALL=(root) NOPASSWD: /usr/local/sbin/pvebench-node ""
# Requests come on stdin, one word per line; the client's command is ignored. The script reads VM
# counters, and writes back and drops the page cache of pvebench's volumes. It checks its qcow2 files,
# and kills QEMU of a VM with an ownership marker in its description. It changes nothing else, except
# by the requests of backends, and validates every word.
set -eu
export LC_ALL=C PATH=/usr/sbin:/usr/bin:/sbin:/bin
readonly PIDS=/run/qemu-server GROUPS_OF=/sys/fs/cgroup/lxc MACHINES=/etc/pve/qemu-server
readonly VERSION=4 STORAGES=/etc/pve/storage.cfg

# Likely cause and next step of errors.
readonly OTHER_VERSION="pvebench-node there belongs to another version of pvebench|install the output of \`pvebench proxmox node-script\`"
readonly FOREIGN="it was created or changed outside pvebench|inspect it; pvebench changes only what it created"
readonly GONE="it was removed, or its storage is not active on the node|run \`pvebench check\`, then check the storage on the node"
readonly SILENT="the storage does not respond, or the node is overloaded|check the storage on the node; pvebench retries"
readonly CHANGED="it was started, stopped or changed at the same time, or the node is overloaded|no action needed; pvebench retries"

refuse() { # ERROR CAUSE|STEP
    printf 'pvebench-node: %s|%s\n' "$1" "$2" >&2
    exit 96
}

# Functions of drivers/linux and of node backends are inserted here.

# The shell keeps a line in memory until its end, so a child process with limited memory reads it.
next_word() {
    word=$(ulimit -v 8192 && IFS= read -r line && printf '%.1001s' "$line") || refuse "missing word" "$OTHER_VERSION"
    [ "${#word}" -le 1000 ] || refuse "word too long" "$OTHER_VERSION"
}

number() { # WORD LENGTH
    case $1 in
    '' | *[!0-9]*) refuse "not a number: $1" "$OTHER_VERSION" ;;
    esac
    [ "${#1}" -le "$2" ] || refuse "not a number: $1" "$OTHER_VERSION"
}

hexadecimal() { # WORD LENGTH
    printf '%s\n' "$1" | grep -qE "^[0-9a-f]{$2}\$" || refuse "not $2 hexadecimal digits: $1" "$OTHER_VERSION"
}

name() { # WORD: name of a storage or pool
    printf '%s\n' "$1" | grep -qE '^[A-Za-z][A-Za-z0-9._-]{0,99}$' || refuse "not a name: $1" "$OTHER_VERSION"
}

# A volume name of pvebench, in Proxmox's format STORAGE:[DIRECTORY/]NAME.
volume() {
    case $1 in
    *[!A-Za-z0-9:/._-]* | *..* | -*) refuse "not a volume: $1" "$OTHER_VERSION" ;;
    esac
    printf '%s\n' "$1" |
        grep -qE '^[A-Za-z][A-Za-z0-9._-]*:([0-9]{1,10}/)?vm-[0-9]{1,10}-pvebench-[0-9a-f]{12}-[a-z0-9.-]+$' ||
        refuse "not a volume of pvebench: $1" "$FOREIGN"
    path=$(timeout -k 5 60 pvesm path "$1") || refuse "volume $1 not found" "$GONE"
    follow=
    case $path in
    /dev/*) [ ! -b "$path" ] || return 0 ;;
    esac
    # A link could lead to a file of the node, and a pipe blocks its reader.
    follow=,nofollow
    is_file "$path" || refuse "$1 is not a file or device of this node: $path" "$GONE"
    own_file "$path"
}

is_file() { [ -f "$1" ] && [ ! -L "$1" ]; }

# Proxmox VE creates a volume and its directory as one user (on NFS often not root), under one name.
own_file() { # PATH
    [ "$(stat -c %h:%u -- "$1")" = "1:$(stat -c %u -- "${1%/*}")" ] ||
        refuse "file of another user, or with a second name: $1" "$FOREIGN"
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
    case $word in *[!0-9:,]*) refuse "not a list of devices: $word" "$OTHER_VERSION" ;; esac
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
    is_marked || refuse "VM $vmid not changed: not found, or without this marker and tag" "$FOREIGN"
    pid=$(cat "$PIDS/$vmid.pid" 2>/dev/null) || pid=
    is_vm "$pid" "$vmid" || refuse "VM $vmid does not run" "$CHANGED"
    [ "$(process_field 20)" = "$word" ] || refuse "VM $vmid was restarted" "$CHANGED"
    kill -KILL "$pid"
    for _ in $(seq 300); do
        case $(process_field 1) in '' | Z) return 0 ;; esac
        sleep 0.1
    done
    refuse "VM $vmid does not end" "$CHANGED"
}

# Field of /proc/PID/stat after the name, which may have blanks.
process_field() { sed 's/.*) //' "/proc/$pid/stat" 2>/dev/null | cut -d ' ' -f "$1"; }

# Print the exit code of qemu-img for a qcow2 file. A block device is not opened: its content could be
# that of a raw volume, and then the guest's.
check_image() {
    next_word
    volume "$word"
    case $follow$path in ,nofollow*.qcow2) ;; *) refuse "not a qcow2 file: $word" "$OTHER_VERSION" ;; esac
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
    values=$(values_of_storage 2>/dev/null) || [ $? = 127 ] || refuse "options of storage $storage: reading failed" "$SILENT"
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

# A guest of pvebench by ID and marker: sets `vmid` and `mark`.
named() {
    next_word
    vmid=$word
    number "$vmid" 9
    next_word
    mark=$word
    hexadecimal "$mark" 32
}

# Whether `configuration` has marker and tag.
is_marked() {
    settings | grep -qxF "#pvebench-mark%3A $mark" &&
        settings | grep -qE '^tags: (.*;)?pvebench(;|$)'
}

# Effective configuration, without the sections of snapshots and pending changes.
settings() { sed '/^\[/,$d' "$configuration" 2>/dev/null; }

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
# Requests of node backends are inserted here.
*) refuse "no such question" "$OTHER_VERSION" ;;
esac

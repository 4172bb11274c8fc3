#!/bin/sh
# pvebench-node: what pvebench may ask of a Proxmox VE node by ssh, and nothing else.
#
# Install it as /usr/local/sbin/pvebench-node, owner root, mode 755, and let the key run only it:
#   ~pvebench/.ssh/authorized_keys: restrict,command="sudo -n /usr/local/sbin/pvebench-node" KEY
#   sudoers: pvebench ALL=(root) NOPASSWD: /usr/local/sbin/pvebench-node ""
#
# The question comes on stdin, a word a line; what the client wants to run is ignored. It reads
# counters of VMs, and writes back and drops the page cache of volumes that pvebench made. It
# changes nothing else, and what it is asked about must look like what it is.
set -eu
export LC_ALL=C PATH=/usr/sbin:/usr/bin:/sbin:/bin
readonly PIDS=/run/qemu-server VERSION=1

refuse() {
    printf 'pvebench-node: %s\n' "$*" >&2
    exit 96
}

next_word() {
    word=
    IFS= read -r word || refuse "a word is missing"
    [ "${#word}" -le 300 ] || refuse "a word is too long"
}

number() { # WORD LENGTH
    case $1 in
    '' | *[!0-9]*) refuse "not a number: $1" ;;
    esac
    [ "${#1}" -le "$2" ] || refuse "not a number: $1"
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

# What a path is; the number of its device, or of the one that it lies on.
find_volume() {
    next_word
    volume "$word"
    stat -L -c '%F|%t|%T|%d|0' -- "$path"
}

drop() {
    next_word
    volume "$word"
    dd of="$path" oflag=nocache conv=notrunc,nocreat,fdatasync count=0 status=none </dev/null
    fincore --bytes --noheadings --output RES -- "$path"
}

# Counters of the node, of a VM (0: of none) and of a block device (0:0: of none).
look() {
    next_word
    vmid=$word
    number "$vmid" 10
    next_word
    number "${word%%:*}" 4
    number "${word#*:}" 8
    set -- /proc/stat /proc/pressure/cpu /proc/pressure/io /proc/pressure/memory \
        "/sys/dev/block/$word/stat"
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

hello() {
    echo "pvebench-node $VERSION"
    for program in fincore pvesm zpool smartctl dmsetup; do
        if command -v "$program" >/dev/null; then echo "has $program"; fi
    done
    if [ -r /sys/kernel/debug/kvm ]; then echo "has kvm"; fi
}

next_word
case $word in
hello | look | drop | state) "$word" ;;
find) find_volume ;;
*) refuse "no such question" ;;
esac

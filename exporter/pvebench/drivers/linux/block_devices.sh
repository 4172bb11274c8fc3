#!/bin/sh
# Block devices below a path. It precedes remote_commands.sh and is part of node.sh. It only reads, and needs
# no right of root except to open the path.

# Description of a path: TYPE|MAJOR|MINOR of the device itself|number of its file system|SIZE, from
# the caller|devices of a btrfs, MAJOR:MINOR,…
describe_path() { # PATH SIZE
    what=$(stat -L -c '%F|%t|%T|%d' -- "$1")
    printf '%s|%s|%s\n' "$what" "$2" "$(btrfs_devices "$1" 2>/dev/null || :)"
}

# Files of a btrfs have a number of no device, a different one per subvolume. The kernel shows the
# mount of an open file (mnt_id); the mount names one device of the file system, next to which sysfs
# has all present ones.
btrfs_devices() { # PATH
    [ -f "$1" ] || [ -d "$1" ] || return 0 # opening other files may have side effects
    exec 3<"$1"
    mount=$(sed -n 's/^mnt_id:[[:space:]]*//p' /proc/self/fdinfo/3)
    source=$(sed -n "s/^$mount .* - btrfs \([^ ]*\) .*/\1/p" /proc/self/mountinfo)
    [ -n "$source" ] || return 0
    number=$(stat -L -c '%t:%T' -- "$source")
    number=$((0x${number%:*})):$((0x${number#*:}))
    found=$(grep -lxF "$number" /sys/fs/btrfs/*/devices/*/dev)
    [ -z "$found" ] || cat "${found%/*/*}"/*/dev | paste -s -d , -
}

#!/bin/sh
# Which block devices a path lies on: stands before rows.sh, and in what a node is asked (node.sh).
# It reads, and no more: no right of root is needed but to open the path itself.

# What a path is: FORM|MAJOR|MINOR of a device itself|number of its file system|SIZE, which the
# caller knows|of a btrfs its devices, MAJOR:MINOR,…
tell_path() { # PATH SIZE
    what=$(stat -L -c '%F|%t|%T|%d' -- "$1")
    printf '%s|%s|%s\n' "$what" "$2" "$(btrfs_devices "$1" 2>/dev/null || :)"
}

# Files of a btrfs have a number that is no device's, in each subvolume another. Of which mount a
# file is, the kernel tells of what is open (mnt_id); the mount names one device of the file system,
# and beside that one in sysfs are all that are there.
btrfs_devices() { # PATH
    [ -f "$1" ] || [ -d "$1" ] || return 0 # to open others may do something
    exec 3<"$1"
    mount=$(sed -n 's/^mnt_id:[[:space:]]*//p' /proc/self/fdinfo/3)
    source=$(sed -n "s/^$mount .* - btrfs \([^ ]*\) .*/\1/p" /proc/self/mountinfo)
    [ -n "$source" ] || return 0
    number=$(stat -L -c '%t:%T' -- "$source")
    number=$((0x${number%:*})):$((0x${number#*:}))
    found=$(grep -lxF "$number" /sys/fs/btrfs/*/devices/*/dev)
    [ -z "$found" ] || cat "${found%/*/*}"/*/dev | paste -s -d , -
}

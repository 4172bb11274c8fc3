#!/bin/sh
# Commands of pvebench on a machine that it measures by ssh, in addition to the tools. The script is
# sent with each call (sh -c), so nothing is installed there. It needs no rights of root.
#
#   VERB WORD…        all created, changed and removed files have the ownership marker
#
# Its own exit codes: 96 refused, 97 exists already.
set -eu
export LC_ALL=C
umask 077
readonly MARK=pvebench-test-

refuse() {
    printf '%s\n' "$*" >&2
    exit 96
}

ours() {
    case ${1##*/} in
    "$MARK"?*) ;;
    *) refuse "$1 not changed: no ownership marker of pvebench" ;;
    esac
}

within_ours() {
    case ${1%/*} in
    */"$MARK"?*) ;;
    *) refuse "$1 not changed: no ownership marker in its directory" ;;
    esac
}

# A link could lead to another file, and opening a pipe blocks.
own_file() {
    if [ -L "$1" ] || [ ! -f "$1" ] || [ ! -O "$1" ]; then
        refuse "$1 not changed: not a file of this user"
    fi
}

# Identity of a file; of a link the link itself, which pvebench did not create.
known() { stat -c '%F|%d|%i|%s' -- "$1"; }

# The device of a path, or those below it, and its size (block_devices.sh).
device() {
    size=$(blockdev --getsize64 "$1" 2>/dev/null || stat -L -c %s -- "$1")
    describe_path "$1" "$size"
}

# Free bytes in a directory.
space() { # PATH
    df -B1 --output=avail -- "$1" | tail -n 1
}

# Report of smartctl on each drive below block devices, followed by a NUL (drive_wear.py). It only
# reads; opening a drive needs root, so others get the report "Permission denied".
wear() { # MAJOR:MINOR…
    PATH=$PATH:/usr/sbin:/sbin
    command -v smartctl >/dev/null || exit 127
    for number; do drives "/sys/dev/block/$number"; done | sort -u | tr '!' / | while read -r name; do
        timeout 10 smartctl --json --all --log=devstat "/dev/$name" </dev/null | head -c 1048576
        printf '\0'
    done
}

# Disks below a device, those of RAIDs too; none of a file system without a device.
drives() ( # DIRECTORY in sysfs
    cd -P -- "$1" 2>/dev/null || exit 0
    [ ! -e partition ] || cd ..
    set -- slaves/*
    if [ -e "$1" ]; then
        for member; do drives "$member"; done
    else
        basename "$(pwd -P)"
    fi
)

make() { # PATH BYTES
    ours "$1"
    set -C # never overwrites a file, and follows no link
    (: >"$1") 2>/dev/null || exit 97
    set +C
    truncate -s "$2" -- "$1"
    known "$1"
}

directory() { # PATH
    ours "$1"
    mkdir -p -- "$1"
}

write() { # PATH, content on stdin
    within_ours "$1"
    if [ -e "$1" ] || [ -L "$1" ]; then own_file "$1"; fi
    cat >"$1"
}

# Write back and drop the page cache of a file or device; print the bytes that stay.
drop() { # PATH
    follow=
    case $1 in
    /dev/*) ;;
    *) own_file "$1" && follow=,nofollow ;;
    esac
    timeout 80 dd of="$1" oflag="nocache$follow" conv=notrunc,nocreat,fdatasync count=0 status=none </dev/null
    if command -v fincore >/dev/null; then
        fincore --bytes --noheadings --output RES -- "$1"
    fi
}

# Start a tool in its own session, which a lost connection does not end. Its directory is created
# only once, so a tool cannot be started twice, nor after `recall`.
start() { # DIRECTORY WORD…
    ours "$1"
    mkdir -- "$1" 2>/dev/null || gone "$1"
    # shellcheck disable=SC2016 # the inner shell's
    PVEBENCH_JOB=$1/ setsid sh -c '
        job=$1
        shift
        "$@" </dev/null >"$job/stdout" 2>"$job/stderr" &
        echo "$! $$" >"$job/pid.new" && mv "$job/pid.new" "$job/pid"
        code=0
        wait $! || code=$?
        echo "$code" >"$job/code.new" && mv "$job/code.new" "$job/code"
    ' sh "$@" </dev/null >/dev/null 2>&1 &
    number_of "$1"
}

gone() {
    [ ! -e "$1" ] || exit 97
    refuse "${1%/*} does not exist: the machine was restarted, or it was removed"
}

number_of() {
    tries=0
    until [ -s "$1/pid" ]; do
        tries=$((tries + 1))
        [ "$tries" -lt 500 ] || refuse "$1 did not start"
        sleep 0.02
    done
    cut -d ' ' -f 1 "$1/pid"
}

# Prevent a start whose reply was lost, or print its process ID.
recall() { # DIRECTORY
    ours "$1"
    if mkdir -- "$1" 2>/dev/null; then
        echo never
    else
        number_of "$1"
    fi
}

# Print whether a tool is running, or its exit code, the size of its output, and the output. It is
# called often during a measurement, so it checks only one process.
poll() { # DIRECTORY MOST
    ours "$1"
    watcher=$(cut -d ' ' -f 2 "$1/pid")
    if [ ! -e "$1/code" ] && grep -qszF "PVEBENCH_JOB=$1/" "/proc/$watcher/environ"; then
        echo running
        return
    fi
    if [ -e "$1/code" ]; then
        cat "$1/code"
    else
        echo gone
        : >>"$1/stdout" # it may have been killed before it opened them
        : >>"$1/stderr"
    fi
    head -c "$2" "$1/stdout" | wc -c
    head -c "$2" "$1/stdout"
    head -c "$2" "$1/stderr"
}

# End all tools below a directory and their children, and remove it.
end() { # DIRECTORY
    ours "$1"
    tries=0
    while found=$(processes "$1") && [ -n "$found" ]; do
        # shellcheck disable=SC2086 # several numbers
        kill -KILL $found 2>/dev/null || :
        tries=$((tries + 1))
        [ "$tries" -lt 200 ] || refuse "processes of $1 did not end: $found"
        sleep 0.05
    done
    # busybox lacks this option; in the only place with nothing else, a container of pvebench,
    # there are no other mounts below.
    only=--one-file-system
    rm "$only" -f -- "" 2>/dev/null || only=-r
    rm -rf "$only" -- "$1"
}

# As `end`, and prevent a start that is still pending.
void() { # DIRECTORY
    end "$1"
    mkdir -- "$1" 2>/dev/null || gone "$1"
}

# Found by their environment: process IDs may be reused, and parents and sessions change.
processes() { grep -lszF "PVEBENCH_JOB=$1/" /proc/[0-9]*/environ | cut -d / -f 3; }

# Every line of some files in /proc and /sys, each after the file's name and a NUL.
files() { grep -saHZ '' -- "$@" || :; }

verb=$1
shift
"$verb" "$@"

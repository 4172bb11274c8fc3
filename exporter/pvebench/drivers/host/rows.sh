#!/bin/sh
# What pvebench does by ssh on a machine whose own storage it measures, beside running the tools.
# It is sent along with each call (sh -c), so nothing is installed there; no right of root is used.
#
#   VERB WORD…        whatever is made, changed or removed has the mark in its name
#
# Exit codes of its own: 96 refused, 97 it is there already.
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
    *) refuse "$1 does not carry pvebench's mark" ;;
    esac
}

within_ours() {
    case ${1%/*} in
    */"$MARK"?*) ;;
    *) refuse "$1 is not in a directory with pvebench's mark" ;;
    esac
}

# Which file it is; of a link the link itself, which is none that we made.
known() { stat -c '%F|%d|%i|%s' -- "$1"; }

# The device of a path, or those that it lies on, and its size (below.sh).
device() {
    size=$(blockdev --getsize64 "$1" 2>/dev/null || stat -L -c %s -- "$1")
    tell_path "$1" "$size"
}

# Bytes that are free in a directory.
space() { # PATH
    df -B1 --output=avail -- "$1" | tail -n 1
}

make() { # PATH BYTES
    ours "$1"
    set -C # only where nothing is, and never through a link
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
    cat >"$1"
}

# Write back and forget what the kernel has cached of a file or device; tell what is left of it.
drop() { # PATH
    dd of="$1" oflag=nocache conv=notrunc,nocreat,fdatasync count=0 status=none </dev/null
    if command -v fincore >/dev/null; then
        fincore --bytes --noheadings --output RES -- "$1"
    fi
}

# A tool in a session of its own, which a lost connection does not end. Its directory is made but
# once: so it cannot be started twice, nor after somebody who did not hear of it has called it off.
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
    refuse "${1%/*} is gone: the machine was started anew, or somebody removed it"
}

number_of() {
    tries=0
    until [ -s "$1/pid" ]; do
        tries=$((tries + 1))
        [ "$tries" -lt 500 ] || refuse "$1 was begun, but does not start"
        sleep 0.02
    done
    cut -d ' ' -f 1 "$1/pid"
}

# Say that a start whose answer was lost must not come to be any more, or what came of it.
recall() { # DIRECTORY
    ours "$1"
    if mkdir -- "$1" 2>/dev/null; then
        echo never
    else
        number_of "$1"
    fi
}

# Whether a tool runs, or how it ended: its code, the size of what it said, and that. Asked often,
# while the machine is measured: it looks at one process, not at all.
poll() { # DIRECTORY MOST
    ours "$1"
    watcher=$(cut -d ' ' -f 2 "$1/pid")
    if [ ! -e "$1/code" ] && grep -qszF "PVEBENCH_JOB=$1/" "/proc/$watcher/environ"; then
        echo running
        return
    fi
    if [ -e "$1/code" ]; then cat "$1/code"; else echo gone; fi
    head -c "$2" "$1/stdout" | wc -c
    head -c "$2" "$1/stdout"
    head -c "$2" "$1/stderr"
}

# End all tools below a directory with all that they started, and remove it.
end() { # DIRECTORY
    ours "$1"
    tries=0
    while found=$(processes "$1") && [ -n "$found" ]; do
        # shellcheck disable=SC2086 # several numbers
        kill -KILL $found 2>/dev/null || :
        tries=$((tries + 1))
        [ "$tries" -lt 200 ] || refuse "processes of $1 do not end: $found"
        sleep 0.05
    done
    # busybox knows no such option; where there is only that, in a container of ours, nothing of
    # others is mounted below.
    only=--one-file-system
    rm "$only" -f -- "" 2>/dev/null || only=-r
    rm -rf "$only" -- "$1"
}

# As `end`; what is still on its way to be started there will not be.
void() { # DIRECTORY
    end "$1"
    mkdir -- "$1" 2>/dev/null || gone "$1"
}

# By their environment: their numbers may be others' by now, and parents and sessions change.
processes() { grep -lszF "PVEBENCH_JOB=$1/" /proc/[0-9]*/environ | cut -d / -f 3; }

# Every line of some files of /proc and /sys, each after the file's name and a NUL.
files() { grep -saHZ '' -- "$@" || :; }

verb=$1
shift
"$verb" "$@"

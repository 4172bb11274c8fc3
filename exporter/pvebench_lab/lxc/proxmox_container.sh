#!/bin/sh
# Containers, a part of pvebench-node: it creates unprivileged containers with an ownership marker in
# their description, and starts, stops, removes and runs programs only in those. The last lines are
# requests, which node.sh answers with its own.
readonly CONFIGURATIONS=/etc/pve/lxc NODES=/etc/pve/nodes MOUNTS=/var/lib/lxc
readonly ARCHIVES=/var/cache/pvebench-node TURNS=/run/pvebench-node POINT=/mnt/test
readonly REJECTED="Proxmox VE rejects the operation|check the container and its storage on the node"
readonly MIGRATED="it was migrated outside pvebench|migrate it back, or remove it there"
readonly OTHERS_SENT="other instances or versions of pvebench sent them|remove the unused ones from /var/cache/pvebench-node on the node"
readonly BROKEN_OFF="the transfer was interrupted|no action needed; pvebench retries"
readonly TOO_MANY="several instances use the node, or a case fails again and again|check the outcomes of the container cases; the limit ends after a day"

# A container of pvebench by ID and marker: sets `vmid`, `mark` and `configuration`.
named_container() {
    named
    configuration=$CONFIGURATIONS/$vmid.conf
}

ours() {
    named_container
    is_ours || refuse "container $vmid not changed: not found, or without this marker and tag" "$FOREIGN"
    leave_foreign
    thaw
}

# pct writes the description as comments, with ':' as %3A (`write_pct_config` in PVE/LXC/Config.pm of
# pve-container). The file is read directly, as `pct config` would start Perl for each request. A
# privileged copy is not accepted: root in it is root on the node.
is_ours() {
    is_marked && settings | grep -qxF 'unprivileged: 1' && ! settings | grep -q '^template: 1'
}

# A foreign volume could be read and changed in the container, and pct destroys it with the container,
# even if the change is pending (`destroy_lxc_container` in PVE/LXC.pm).
leave_foreign() {
    if foreign=$(grep -E '^(mp[1-9][0-9]*|unused[0-9]+): ' "$configuration"); then
        refuse "container $vmid not changed: foreign volume $(printf '%s\n' "$foreign" | head -n 1)" "$FOREIGN"
    fi
}

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
        refuse "pct $1 $2: $(printf '%s\n' "$output" | grep . | tail -n 2 | head -n 1)" "$REJECTED"
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
    [ "$word" -le 300000000 ] || refuse "archive too large: $word bytes" "$OTHER_VERSION"
    umask 077
    mkdir -p "$ARCHIVES"
    exec 9<"$ARCHIVES"
    flock 9 # until this archive is counted too
    # coming-* files without changes for longer than the sender's time limit are interrupted uploads
    find "$ARCHIVES" -type f \( -mmin +1440 -o -name 'coming-*' -mmin +15 \) -delete
    [ "$(find "$ARCHIVES" -type f | wc -l)" -lt 5 ] || refuse "five archives already exist" "$OTHERS_SENT"
    coming=$(mktemp "$ARCHIVES/coming-XXXXXXXX")
    exec 9<&-
    trap 'rm -f "$coming"' EXIT
    head -c "$word" >"$coming"
    echo "$digest  $coming" | sha256sum --check --status || refuse "digest of the archive differs from $digest" "$BROKEN_OFF"
    sync "$coming" # the name must match the content, even after a power failure
    mv "$coming" "$ARCHIVES/$digest.tar.gz"
}

# A container is created only once, and not after a client that lost the response cancelled it:
# removal waits for creation and records the cancellation in the file that both lock.
begin_making() {
    take_turn
    [ ! -s "$TURNS/$mark" ] || refuse "container $vmid was created or cancelled before" "$CHANGED"
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
    flock -w 300 9 || refuse "container $vmid is still being made or looked at" "$CHANGED"
}

# Existing containers can always be removed, even if there are too many of these files.
has_room() {
    [ "$(find "$TURNS" -type f ! -name '*.frozen' | wc -l)" -lt 2000 ] ||
        refuse "limit of 2000 containers per day reached" "$TOO_MANY"
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
    lxc-unfreeze -n "$vmid" || [ -z "$(first_process)" ] || refuse "thawing container $vmid failed" "$CHANGED"
    rm -f "$TURNS/$mark.frozen"
}

# Unprivileged, so that root in it has no rights on the node; without network; volumes made by pct.
make_container() {
    named_container
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
    printf '%s\n' "$gibibytes" | grep -qE '^[0-9]{1,6}(\.[0-9]{1,10})?$' || refuse "not a size: $word" "$OTHER_VERSION"
    next_word
    root=$word
    name "$root"
    next_word
    name "$word"
    begin_making
    [ ! -e "$configuration" ] || refuse "container $vmid already exists" "$CHANGED"
    archive=$ARCHIVES/$digest.tar.gz
    [ -f "$archive" ] || refuse "archive $digest not found" "$GONE"
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
    named_container
    call_off
    if [ ! -e "$configuration" ]; then
        moved=$(grep -lxF "#pvebench-mark%3A $mark" "$NODES"/*/lxc/"$vmid.conf" 2>/dev/null) || {
            rm -f "$TURNS/$mark.frozen"
            return 0
        }
        refuse "container $vmid is on another node: $moved" "$MIGRATED"
    fi
    is_ours || refuse "container $vmid not changed: without this marker and tag" "$FOREIGN"
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
            umount --no-canonicalize --detach-loop "$place" || refuse "$place is in use" "$CHANGED"
        fi
    done
}

# Print whether a container is gone, in creation, foreign or owned; for owned ones, its properties.
tell_container() {
    named_container
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
        refuse "container $vmid just stopped" "$CHANGED"
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
    case $seconds in 0*) refuse "not a time limit in seconds: $seconds" "$OTHER_VERSION" ;; esac
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
    [ -n "$(first_process)" ] || refuse "container $vmid does not run" "$CHANGED"
    take_turn # a request whose response was lost may still be running
    thaw_in_turn
    timeout -k 5 80 lxc-attach -n "$vmid" --clear-env -- /bin/busybox find "$POINT" -name lost+found -prune \
        -o -type f -exec /bin/dd of={} oflag=nocache conv=notrunc,nocreat,fdatasync count=0 status=none \; \
        </dev/null >/dev/null 9>&- || refuse "dropping cached files of container $vmid failed" "$CHANGED"
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
    timeout -k 5 10 lxc-freeze -n "$vmid" || refuse "freezing container $vmid failed" "$CHANGED"
    root=/proc/$(first_process)/root
    if [ -L "$root${POINT%/*}" ] || [ -L "$root$POINT" ]; then
        refuse "$POINT of container $vmid is a link" "$FOREIGN"
    fi
    cached=$(timeout 25 find "$root$POINT" "$@" -xdev -type f -exec \
        fincore --bytes --noheadings --output RES -- {} +) ||
        refuse "counting the cached bytes of container $vmid failed" "$CHANGED"
    printf '%s\n' "$cached" | awk '{ sum += $1 } END { print sum + 0 }'
}

# Requests of node backends are inserted here.
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

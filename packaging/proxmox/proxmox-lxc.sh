#!/usr/bin/env bash
# pvebench in a container of its own on this Proxmox VE node. Run as root on the node:
#
#   bash proxmox-lxc.sh --deb pvebench_VERSION~deb13_amd64.deb
#
# Makes an unprivileged container, installs the package in it, gives it the least rights on the
# cluster, writes its settings, starts it, prints its address. After a try that broke off, the same
# command goes on. What is made is written to a list before it is made; --remove takes away what is
# is on the list, and nothing else.
#
# Root of the container may be an attacker. Everything that runs on the node is in this script.
# The container only answers questions: an exit code, or one line of a given form.
set -euo pipefail
export LC_ALL=C # [a-z] is ASCII, and a length is in bytes

readonly mark=pvebench-lxc
journal=${PVEBENCH_LXC_JOURNAL:-/var/lib/$mark/made}

usage() {
    cat <<'TEXT'
Usage: proxmox-lxc.sh --deb FILE|URL [OPTION…]
       proxmox-lxc.sh --remove [--yes]

  --deb FILE|URL        the package; its ~deb12 or ~deb13 decides the container's Debian
  --sha256 SUM          of the package; a URL needs it
  --storage NAME        storage to measure; may be repeated (all for disks but the container's)
  --root-storage NAME   for the container's own disk; never one that is measured (the first that is free for it)
  --template-storage NAME  for the container's template (the first that holds templates)
  --iso-storage NAME    for the benchmark guest's image, some 50 MB (the first that holds images)
  --ctid NUMBER         of the container (the next that is free)
  --hostname NAME       of the container (pvebench)
  --cores N             (2)
  --memory MIB          (1024)
  --disk GIB            (8)
  --bridge NAME         (vmbr0)
  --ip ADDRESS/BITS     (dhcp)
  --gateway ADDRESS     with --ip
  --pool NAME           where pvebench makes its VM (pvebench)
  --host ADDRESS        of this node, as the container reaches it (that of the bridge)
  --listen ADDRESS:PORT in the container (0.0.0.0:9620, all its addresses: whoever reaches one can
                        read the results; 127.0.0.1:9620: nobody outside the container)
  --web-config FILE     users and TLS of the web UI, in the format of docs/security.md (none)
  --token-file FILE     with pvebench@pve!bench=SECRET, where another pvebench has made the token already
  --yes                 ask nothing
  --remove              remove what this script made here
TEXT
}

# What went wrong, likely cause, next step.
refuse() {
    echo "pvebench: $1" >&2
    [[ -z ${2-} ]] || echo "  likely cause: $2" >&2
    [[ -z ${3-} ]] || echo "  next step: $3" >&2
    exit 1
}

say() { echo "pvebench: $*"; }

# OPTION VALUE: it becomes a word of commands, of the settings and of the list.
need_name() {
    [[ $2 =~ ^[A-Za-z][A-Za-z0-9._-]{0,99}$ ]] ||
        refuse "$1 ${2@Q} is no valid name" "" "use a letter, then letters, digits, . _ or -"
}

agree() {
    local answer
    [[ $yes ]] && return
    read -r -p "pvebench: $1 (yes/no) " answer
    [[ $answer == yes || $answer == y ]] || refuse "nothing was done"
}

# --- what is made is written down first ---------------------------------------------------------

note() {
    mkdir -p "${journal%/*}"
    grep -qxF -- "$1" "$journal" 2>/dev/null || echo "$1" >>"$journal"
    sync "$journal"
}

noted() { [[ ! -e $journal ]] || sed -n "s/^$1 //p" "$journal"; }

forget() {
    local rest
    rest=$(grep -vxF -- "$1" "$journal" || true)
    printf '%s\n' "$rest" | sed '/^$/d' >"$journal.new"
    mv "$journal.new" "$journal"
}

# --- what there is ------------------------------------------------------------------------------

# Active storages that hold a kind of content, one a line.
storages_for() { pvesm status --content "$1" --enabled 1 | awk 'NR > 1 && $3 == "active" { print $1 }'; }

type_of() { pvesm status --storage "$1" | awk 'NR > 1 { print $2 }'; }

is_in() {
    local one
    for one in "${@:2}"; do [[ $one == "$1" ]] && return; done
    return 1
}

choose_storages() {
    local -a disks roots
    mapfile -t disks < <(storages_for images)
    mapfile -t roots < <(storages_for rootdir)
    template_storage=${template_storage:-$(storages_for vztmpl | head -n 1)}
    iso_storage=${iso_storage:-$(storages_for iso | head -n 1)}
    [[ $template_storage ]] || refuse "no storage holds container templates" "" "pvesm set local --content iso,vztmpl,backup"
    [[ $iso_storage ]] || refuse "no storage holds ISO images" "" "pvesm set local --content iso,vztmpl,backup"
    choose_root "${roots[@]}"
    if ((${#measured[@]} == 0)); then
        local one
        for one in "${disks[@]}"; do [[ $one == "$root_storage" ]] || measured+=("$one"); done
    fi
    ((${#measured[@]})) || refuse "no storage is left to measure" \
        "$root_storage is the only one for disks, and holds the container" \
        "name another for the container: --root-storage, or the one to measure: --storage"
    local one
    need_name --iso-storage "$iso_storage"
    for one in "${measured[@]}"; do
        is_in "$one" "${disks[@]}" || refuse "storage $one is not there, not active or holds no disk images"
        need_name --storage "$one"
        [[ $one != "$root_storage" ]] || refuse "$one would be measured and hold the container" \
            "its own writes would be in every number" "--root-storage with another, or another --storage"
    done
}

# Where nothing is said: not the only one with disk images, so that one is left to measure.
choose_root() {
    local one
    if [[ $root_storage ]]; then
        is_in "$root_storage" "$@" || refuse "storage $root_storage is not there, not active or holds no containers" \
            "" "pvesm set $root_storage --content …,rootdir"
        return
    fi
    for one in "$@"; do
        if ((${#measured[@]})) && is_in "$one" "${measured[@]}"; then continue; fi
        # Better one that no VM's disk can lie on: then everything else can be measured.
        if is_in "$one" "${disks[@]}"; then
            root_storage=${root_storage:-$one}
        else
            root_storage=$one
            return
        fi
    done
    [[ $root_storage ]] || refuse "no storage for the container's disk but those that are measured" \
        "none other has the content rootdir" "allow it on another, as in: pvesm set local --content iso,vztmpl,backup,rootdir"
}

node_address() {
    ip -json -4 address show dev "$bridge" 2>/dev/null |
        sed -n 's/.*"local": *"\([0-9.]*\)".*/\1/p' | head -n 1
}

# --- the container ------------------------------------------------------------------------------

fetch_package() {
    if [[ $deb == http://* || $deb == https://* ]]; then
        [[ $sha256 ]] || refuse "a package from the network needs --sha256" "" "take it from SHA256SUMS of the release"
        curl --fail --silent --show-error --location --output "$work/pvebench.deb" "$deb" ||
            refuse "$deb could not be fetched"
    else
        [[ -f $deb ]] || refuse "there is no file $deb"
        cp -- "$deb" "$work/pvebench.deb"
    fi
    if [[ $sha256 ]] && ! echo "$sha256  $work/pvebench.deb" | sha256sum --check --status; then
        refuse "$deb has another checksum than --sha256" "it is damaged, or not the one that was meant"
    fi
    local version
    processor=$(dpkg-deb --field "$work/pvebench.deb" Architecture 2>/dev/null) || refuse "$deb is no Debian package"
    version=$(dpkg-deb --field "$work/pvebench.deb" Version 2>/dev/null) || refuse "$deb is no Debian package"
    [[ $(dpkg-deb --field "$work/pvebench.deb" Package) == pvebench && $version == *~deb* ]] ||
        refuse "$deb is no package of pvebench" "" "take pvebench_VERSION~deb13_amd64.deb"
    debian=${version##*~deb}
}

# The newest of the words on stdin that is a template of this Debian for this processor.
newest_template() { { grep -oE "(\S+:vztmpl/)?debian-$debian-standard_\S+_$processor\.\S+" || true; } | sort -V | tail -n 1; }

# Sets `template`; downloads it where it is not there yet.
have_template() {
    template=$(pveam list "$template_storage" | newest_template)
    [[ -z $template ]] || return 0
    pveam update >/dev/null
    local name
    name=$(pveam available --section system | newest_template)
    [[ $name ]] || refuse "there is no template of Debian $debian" "this Proxmox VE is too old for it, or the list could not be fetched" "take the package for another Debian"
    say "downloading $name to $template_storage"
    template=$template_storage:vztmpl/$name
    note "template $template"
    pveam download "$template_storage" "$name" >/dev/null
    # It ends with 0 even where the task failed.
    [[ $(pveam list "$template_storage" | newest_template) ]] ||
        refuse "$name was not downloaded" "what pveam said above" "mend it, then the same command again"
}

# Never piped into grep -q: it leaves before the other has ended, which then looks like a failure.
is_ours() {
    local config
    config=$(pct config "$1" 2>/dev/null) && grep -q "^tags:.*\b$mark\b" <<<"$config"
}

have_container() {
    local network="name=eth0,bridge=$bridge,ip=$address"
    [[ -z $gateway ]] || network+=",gw=$gateway"
    local before
    before=$(noted container | tail -n 1)
    if [[ $before ]] && is_ours "$before"; then
        [[ -z $ctid || $ctid == "$before" ]] || refuse "container $before was made before; $ctid is another" "" "$0 --remove, then again"
        ctid=$before
        say "container $ctid is there already"
    else
        ctid=${ctid:-$(pvesh get /cluster/nextid --output-format json | tr -d '"')}
        [[ $ctid =~ ^[1-9][0-9]{2,8}$ ]] || refuse "$ctid is no number for a container" "" "--ctid with one above 99"
        ! pct config "$ctid" >/dev/null 2>&1 || refuse "container $ctid is there, and was not made by this script"
        have_template
        note "container $ctid"
        # systemd's own sandboxes need nesting.
        pct create "$ctid" "$template" --unprivileged 1 --features nesting=1 --hostname "$hostname" \
            --cores "$cores" --memory "$memory" --swap 0 --rootfs "$root_storage:$disk" \
            --net0 "$network" --onboot 1 --tags "$mark" \
            --description "Made by proxmox-lxc.sh of pvebench, which also removes it (--remove)." >/dev/null
    fi
    [[ $(pct status "$ctid") == "status: running" ]] || pct start "$ctid"
    in_container 90 sh -c "$wait_for_network" || refuse "container $ctid has no address after a minute" \
        "no DHCP on $bridge" "--remove, then again with --ip and --gateway"
    find_address
}

# Sets `reached` to the first IPv4 address of the container.
find_address() {
    local -a addresses
    must_answer "its addresses" '[0-9a-f.:]{2,45}( [0-9a-f.:]{2,45}){0,9} ?' hostname -I
    read -ra addresses <<<"$answer"
    reached=$hostname
    local one
    for one in "${addresses[@]}"; do
        [[ $one == *.* ]] || continue
        reached=$one
        break
    done
}

# shellcheck disable=SC2016 # expanded in the container
readonly wait_for_network='for _ in $(seq 60); do [ -n "$(hostname -I)" ] && exit 0; sleep 1; done; exit 1'

# SECONDS COMMAND…: pct for a limited time, in a session without this terminal: a program that has
# it could type commands on the node.
attach() { setsid --wait timeout --kill-after=5 "$1" pct exec "$ctid" -- "${@:2}" </dev/null; }

# SECONDS COMMAND…: run it in the container. Its output is shown as printable ASCII, marked as the
# container's, 64 KiB at most. In the background, so that Ctrl-C ends the script at once.
in_container() {
    local seconds=$(($1 < longest ? $1 : longest)) status=0
    {
        attach "$seconds" "${@:2}" 2>&1 | timeout "$((seconds + 6))" tr -c '\n -~' '?' |
            { head -c 65536 && cat >/dev/null; } | awk '{ print "container: " $0 }' >&2
        exit "${PIPESTATUS[0]}"
    } &
    wait $! || status=$?
    ((status != 124 && status != 137)) || refuse "container $ctid did not finish in $seconds s: ${*:2}" \
        "it hangs, or was tampered with" "see what it does: pct enter $ctid"
    return "$status"
}

# COMMAND…: set `answer` to what it prints in the container, a little more than 1 KiB at most.
ask_container() {
    local seconds=$((60 < longest ? 60 : longest))
    { attach "$seconds" "$@" 2>/dev/null | timeout "$((seconds + 6))" head -c 1100 >"$work/answer"; } &
    wait $! || true
    answer=$(tr '\0' '?' <"$work/answer")
}

# WHAT PATTERN COMMAND…: end here unless the whole answer has that form.
must_answer() {
    ask_container "${@:3}"
    [[ ${#answer} -le 1024 && $answer =~ ^($2)$ ]] || refuse \
        "container $ctid gave no valid answer for $1: '$(printable "${answer:0:80}")'" \
        "it is damaged, or was tampered with" "pct enter $ctid to see, or $0 --remove to remove it"
}

printable() { printf %s "$1" | tr -c ' -~' '?'; }

# `pct push` ends with 0 even where the task failed: what arrived is looked at.
put() {
    pct push "$ctid" "$@"
    ask_container sha256sum "$2"
    [[ ${answer%% *} == "$(sha256sum <"$1" | cut -d' ' -f1)" ]] ||
        refuse "$2 did not arrive in container $ctid" "what pct said above; its disk may be full" "mend it, then the same command again"
}

install_package() {
    put "$work/pvebench.deb" /root/pvebench.deb
    in_container 1800 apt-get -qq update
    # Without QEMU: the VM runs on the node.
    in_container 3600 env DEBIAN_FRONTEND=noninteractive apt-get -qq install --yes --no-install-recommends \
        -o Dpkg::Options::=--force-confold /root/pvebench.deb
    in_container 60 rm /root/pvebench.deb
    find_owner
}

# Sets `owner` and `group`, the numbers of pvebench in the container.
find_owner() {
    must_answer "the number of its user pvebench" '[1-9][0-9]{0,4}' id -u pvebench
    owner=$answer
    must_answer "the number of its group pvebench" 'pvebench:x?:[1-9][0-9]{0,4}:[a-z_,-]{0,100}' getent group pvebench
    IFS=: read -r _ _ group _ <<<"$answer"
}

write_settings() {
    local name one certificate
    {
        echo "# Made by proxmox-lxc.sh; every key is explained in /usr/share/doc/pvebench/docs/proxmox.md."
        echo "driver: proxmox"
        echo "state: /var/lib/pvebench"
        echo "guest_image: /var/cache/pvebench/guest"
        echo "packs: [quick]"
        echo "listen: \"$listen\""
        [[ -z $web_config ]] || echo "web_config_file: web.yml"
        echo "proxmox:"
        echo "  host: \"$host\""
        echo "  nodes: [\"$node\"]"
        echo "  version: $major"
        echo "  token_file: token"
        echo "  pool: \"$pool\""
        echo "  iso_storage: \"$iso_storage\""
        # A certificate of the administrator's own is named by its fingerprint: its authority is
        # unknown here.
        if [[ -f $pve/local/pveproxy-ssl.pem ]]; then
            certificate=$(openssl x509 -noout -fingerprint -sha256 -in "$pve/local/pveproxy-ssl.pem")
            echo "  tls: {fingerprint: \"${certificate#*=}\"}"
        else
            echo "  tls: {ca_file: pve-root-ca.pem}"
        fi
        echo "  storages:"
        for one in "${measured[@]}"; do
            # What packs measure that name no storage is called local.
            name=$(tr 'A-Z.' 'a-z-' <<<"$one")
            if [[ $one == "${measured[0]}" ]] && ! is_in local "${measured[@]}"; then name=local; fi
            echo "    \"$name\": {type: $(type_of "$one"), id: \"$one\"}"
        done
    } >"$work/pvebench.yaml"
    put "$work/pvebench.yaml" /etc/pvebench/pvebench.yaml --perms 0640 --group "$group"
    put "$pve/pve-root-ca.pem" /etc/pvebench/pve-root-ca.pem --perms 0644
    [[ -z $web_config ]] || put_secret "$web_config" /etc/pvebench/web.yml
}

# --- the rights ---------------------------------------------------------------------------------

# --- generated from drivers/proxmox/setup/permissions.py by make generate ---
readonly pve_user=pvebench@pve pve_token=bench
end_token() { pveum user token delete pvebench@pve bench; }
make_grants() {
    local storage
    listed roleid StorageBenchVM pveum role list || made pveum role add StorageBenchVM
    case "$major" in 8) pveum role modify StorageBenchVM --privs 'Datastore.AllocateSpace Datastore.AllocateTemplate Datastore.Audit Pool.Audit VM.Allocate VM.Audit VM.Config.CDROM VM.Config.CPU VM.Config.Disk VM.Config.HWType VM.Config.Memory VM.Config.Options VM.Monitor VM.PowerMgmt' ;; 9) pveum role modify StorageBenchVM --privs 'Datastore.AllocateSpace Datastore.AllocateTemplate Datastore.Audit Pool.Audit VM.Allocate VM.Audit VM.Config.CDROM VM.Config.CPU VM.Config.Disk VM.Config.HWType VM.Config.Memory VM.Config.Options VM.GuestAgent.Unrestricted VM.PowerMgmt' ;; esac
    listed roleid StorageBenchNode pveum role list || made pveum role add StorageBenchNode
    pveum role modify StorageBenchNode --privs Sys.Audit
    listed poolid "$pool" pveum pool list || made pveum pool add "$pool"
    for storage in "${measured[@]}" "$iso_storage"; do listed storage "$storage" pvesh get /pools/"$pool" || made pveum pool modify "$pool" --storage "$storage"; done
    listed userid pvebench@pve pveum user list || made pveum user add pvebench@pve
    listed tokenid bench pveum user token list pvebench@pve || made pveum user token add pvebench@pve bench --privsep 1
    pveum user token modify pvebench@pve bench --privsep 1
    pveum acl modify /pool/"$pool" --users pvebench@pve --roles StorageBenchVM
    pveum acl modify /pool/"$pool" --tokens 'pvebench@pve!bench' --roles StorageBenchVM
    pveum acl modify /nodes --users pvebench@pve --roles StorageBenchNode
    pveum acl modify /nodes --tokens 'pvebench@pve!bench' --roles StorageBenchNode
}
# --- end of the generated part ---

# KEY VALUE COMMAND…: whether the listing has that member.
listed() {
    local listing
    listing=$("${@:3}" --output-format json) || refuse "the node does not answer: ${*:3}" "what it said above" \
        "when it answers, the same command again"
    grep -q "\"$1\" *: *\"${2//./[.]}\"" <<<"$listing"
}

# COMMAND…: note it, then run it.
made() {
    note "grant $*"
    "$@"
}

grant_rights() {
    if [[ $token_file ]]; then
        keep_token "$(head -n 1 "$token_file")"
    elif ! in_container 60 test -s /etc/pvebench/token; then
        new_token
    fi
    make_grants >"$work/grants"
    local secret
    secret=$(grep -oE '[0-9a-f]{8}(-?[0-9a-f]{4}){3}-?[0-9a-f]{12}' "$work/grants" | head -n 1 || true)
    if [[ $secret ]]; then keep_token "$pve_user!$pve_token=$secret"; fi
    in_container 60 test -s /etc/pvebench/token || refuse "the token's secret was not shown"
}

# A token whose secret was lost with a broken try is made anew, if it was made by this script.
new_token() {
    local listed
    listed=$(pveum user token list "$pve_user" --output-format json 2>/dev/null || true)
    [[ $listed == *"\"$pve_token\""* ]] || return 0
    if [[ $(noted grant) != *"pveum user token add "* ]]; then
        refuse "the token $pve_user!$pve_token is there already, and its secret is not known here" \
            "another pvebench uses it" "give its secret: --token-file FILE with $pve_user!$pve_token=SECRET"
    fi
    end_token
}

keep_token() {
    (umask 077 && printf '%s\n' "$1" >"$work/token")
    put_secret "$work/token" /etc/pvebench/token
}

put_secret() { put "$1" "$2" --perms 0600 --user "$owner" --group "$group"; }

# --- all of it ----------------------------------------------------------------------------------

make_all() {
    [[ $deb ]] || { usage >&2; exit 2; }
    node=$(hostname)
    node=${node%%.*} # as Proxmox VE itself takes it
    major=$(pveversion | sed -n 's,^pve-manager/\([0-9]*\)\..*,\1,p')
    [[ $major == 8 || $major == 9 ]] || refuse "this is no node of Proxmox VE 8 or 9" "" "run it as root on a node"
    host=${host:-$(node_address)}
    [[ $host ]] || refuse "$bridge has no address of this node" "" "--host with an address that the container reaches"
    [[ $listen =~ ^[0-9.]+:[0-9]+$ ]] || refuse "--listen $listen is no IPv4 address with a port" "" "--listen 0.0.0.0:9620 or 127.0.0.1:9620"
    [[ -z $web_config || -f $web_config ]] || refuse "there is no file $web_config"
    need_name --pool "$pool"
    choose_storages
    fetch_package
    say "container on $root_storage (Debian $debian, $cores cores, $memory MiB), measuring ${measured[*]} of $node"
    say "the results can be read by $(readers)"
    agree "make it, with a role, a user, a token and the pool $pool?"
    have_container
    install_package
    write_settings
    grant_rights
    in_container 60 systemctl enable pvebench.service
    in_container 600 systemctl restart pvebench.service || refuse "pvebench does not start" \
        "the log says" "pct exec $ctid -- journalctl -u pvebench"
    say "$(page) has the results; the first is there in some minutes"
    say "they can be read by $(readers)"
    say "is all as it should be: pct exec $ctid -- pvebench check --config /etc/pvebench/pvebench.yaml"
}

page() {
    local scheme=http found=${listen%:*}
    if [[ $found == 0.0.0.0 ]]; then found=$reached; fi
    if [[ $web_config ]] && grep -q '^tls_server_config:' "$web_config"; then scheme=https; fi
    echo "$scheme://$found:${listen##*:}/"
}

readers() {
    if [[ $listen == 127.* ]]; then
        echo "programs in the container only (for others: the same command with --listen 0.0.0.0:9620)"
    elif [[ $web_config ]]; then
        echo "whom $web_config lets in"
    else
        echo "whoever reaches the container on $bridge, without a login (--web-config FILE for users, --listen 127.0.0.1:9620 for nobody)"
    fi
}

remove_all() {
    [[ -s $journal ]] || { say "nothing was made here"; return; }
    say "made here: $(cut -d' ' -f1,2 "$journal" | sort | uniq -c | awk '{ print $2, $3 }' | paste -sd, | sed 's/,/, /g')"
    agree "remove it all, results included?"
    local entry
    # Not on stdin: what runs in a container may read that.
    while IFS= read -r -u 3 entry; do
        undo "$entry" || refuse "not removed: $entry" "see above" "mend it, then --remove again: the rest is still on the list $journal"
        forget "$entry"
    done 3< <(tac "$journal" | awk '/^container / { first = first $0 "\n"; next } { rest = rest $0 "\n" } END { printf "%s%s", first, rest }')
    rm -f "$journal"
    say "removed"
}

# Undo one line of the list. What is no longer there is gone already.
undo() {
    local -a words
    local listed
    read -ra words <<<"$1"
    case "$1" in
        "container "*)
            pct config "${words[1]}" >/dev/null 2>&1 || return 0
            is_ours "${words[1]}" || refuse "container ${words[1]} no longer has the tag $mark" \
                "it is another one by now" "remove it by hand, or the line from $journal"
            if [[ $(pct status "${words[1]}") == "status: running" ]]; then
                # Ended in order it takes its VM and volumes along.
                (ctid=${words[1]} && in_container 600 systemctl stop pvebench.service) || true
                pct stop "${words[1]}"
            fi
            pct destroy "${words[1]}" --purge 1
            ;;
        "template "*)
            listed=$(pveam list "${words[1]%%:*}")
            [[ $listed != *"${words[1]}"* ]] || pveam remove "${words[1]}"
            ;;
        "grant pveum role add "*) gone "role list" "${words[4]}" || pveum role delete "${words[4]}" ;;
        "grant pveum pool add "*) gone "pool list" "${words[4]}" || pveum pool delete "${words[4]}" ;;
        "grant pveum pool modify "*)
            gone "pool list" "${words[4]}" && return
            listed=$(pvesh get "/pools/${words[4]}" --output-format json)
            ! grep -q "\"storage\" *: *\"${words[6]//./[.]}\"" <<<"$listed" ||
                pveum pool modify "${words[4]}" --storage "${words[6]}" --delete 1
            ;;
        "grant pveum user add "*) gone "user list" "${words[4]}" || pveum user delete "${words[4]}" ;;
        "grant pveum user token add "*) gone "user token list ${words[5]}" "${words[6]}" || pveum user token delete "${words[5]}" "${words[6]}" ;;
        *) refuse "a line of $journal is not understood: $1" ;;
    esac
}

# Whether a listing of pveum has no such name any more.
gone() {
    local listed
    # shellcheck disable=SC2086 # the words of a command
    listed=$(pveum $1 --output-format json 2>/dev/null) || return 0
    [[ $listed != *"\"$2\""* ]]
}

yes='' remove='' deb='' sha256='' root_storage='' template_storage='' iso_storage='' ctid=''
hostname=pvebench cores=2 memory=1024 disk=8 bridge=vmbr0 address=dhcp gateway='' pool=pvebench
host='' listen=0.0.0.0:9620 web_config='' token_file='' pve=${PVEBENCH_LXC_PVE:-/etc/pve}
measured=() longest=${PVEBENCH_LXC_SECONDS:-3600}

while (($#)); do
    case "$1" in
        --yes) yes=1; shift; continue ;;
        --remove) remove=1; shift; continue ;;
        -h | --help) usage; exit 0 ;;
    esac
    (($# > 1)) || { usage >&2; exit 2; }
    case "$1" in
        --deb) deb=$2 ;;
        --sha256) sha256=$2 ;;
        --storage) measured+=("$2") ;;
        --root-storage) root_storage=$2 ;;
        --template-storage) template_storage=$2 ;;
        --iso-storage) iso_storage=$2 ;;
        --ctid) ctid=$2 ;;
        --hostname) hostname=$2 ;;
        --cores) cores=$2 ;;
        --memory) memory=$2 ;;
        --disk) disk=$2 ;;
        --bridge) bridge=$2 ;;
        --ip) address=$2 ;;
        --gateway) gateway=$2 ;;
        --pool) pool=$2 ;;
        --host) host=$2 ;;
        --listen) listen=$2 ;;
        --web-config) web_config=$2 ;;
        --token-file) token_file=$2 ;;
        *) usage >&2; exit 2 ;;
    esac
    shift 2
done

[[ ${EUID:-$(id -u)} == 0 ]] || refuse "this needs root on the node"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
if [[ $remove ]]; then remove_all; else make_all; fi

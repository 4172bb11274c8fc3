#!/usr/bin/env bash
# Install pvebench in a container on this Proxmox VE node. Run as root on the node:
#
#   bash proxmox-lxc.sh --deb pvebench_VERSION_deb13_amd64.deb
# Creates an unprivileged container, installs the package, grants minimum rights on the cluster,
# writes the settings, starts pvebench and prints its address. After an interruption, run the same
# command again. Everything is recorded in a list before its creation; --remove removes only what
# is on the list.
# Root in the container may be an attacker. This script contains everything that runs on the node.
# The container only returns exit codes, or single lines in a fixed format.
set -euo pipefail
export LC_ALL=C # [a-z] is ASCII, and lengths are bytes

readonly mark=pvebench-lxc
journal=${PVEBENCH_LXC_JOURNAL:-/var/lib/$mark/made}

usage() {
    cat <<'TEXT'
Usage: proxmox-lxc.sh --deb FILE|URL [OPTION…]
       proxmox-lxc.sh --remove [--yes]

  --deb FILE|URL        package; _deb12 or _deb13 selects the container's Debian
  --sha256 SUM          checksum of the package; required for a URL
  --storage NAME        storage to measure; can be repeated (all disk storages except the container's)
  --root-storage NAME   storage of the container's disk, never a measured one (first suitable)
  --template-storage NAME  storage of the container's template (first suitable)
  --iso-storage NAME    storage of the guest image, about 50 MB (first suitable)
  --ctid NUMBER         ID of the container (next free one)
  --hostname NAME       host name of the container (pvebench)
  --cores N             CPUs (2)
  --memory MIB          memory (1024)
  --disk GIB            disk size (8)
  --bridge NAME         network bridge (vmbr0)
  --ip ADDRESS/BITS     static address (dhcp)
  --gateway ADDRESS     gateway, with --ip
  --pool NAME           pool of the benchmark VM (pvebench)
  --host ADDRESS        address of this node for the container (that of the bridge)
  --listen ADDRESS:PORT address in the container (0.0.0.0:10620: results are readable for everyone on the
                        network; 127.0.0.1:10620: only in the container)
  --web-config FILE     users and TLS of the web UI, see docs/security.md (none)
  --token-file FILE     file with USER@pve!bench=SECRET, if another pvebench created the token
  --yes                 ask nothing
  --remove              remove everything that this script created here
TEXT
}

# FACT [CAUSE [ACTION]]
refuse() {
    echo "pvebench: $1" >&2
    [[ -z ${2-} ]] || echo "  likely cause: $2" >&2
    [[ -z ${3-} ]] || echo "  next step: $3" >&2
    exit 1
}

say() { echo "pvebench: $*"; }

# OPTION VALUE: the value becomes part of commands, settings and the list.
need_name() {
    [[ $2 =~ ^[A-Za-z][A-Za-z0-9._-]{0,99}$ ]] ||
        refuse "$1 ${2@Q} is not a valid name" "" "use a letter, then letters, digits, . _ or -"
}

agree() {
    local answer
    [[ $yes ]] && return
    read -r -p "pvebench: $1 (yes/no) " answer
    [[ $answer == yes || $answer == y ]] || refuse "cancelled; nothing changed"
}

# --- list of created objects --------------------------------------------------------------------

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

# --- storages -----------------------------------------------------------------------------------

# Active storages with a content type, one per line.
storages_for() { pvesm status --content "$1" --enabled 1 | awk 'NR > 1 && $3 == "active" { print $1 }'; }

type_of() { pvesm status --storage "$1" | awk 'NR > 1 { print $2 }'; }

is_in() {
    local item
    for item in "${@:2}"; do [[ $item == "$1" ]] && return; done
    return 1
}

choose_storages() {
    local -a disks roots
    mapfile -t disks < <(storages_for images)
    mapfile -t roots < <(storages_for rootdir)
    template_storage=${template_storage:-$(storages_for vztmpl | head -n 1)}
    iso_storage=${iso_storage:-$(storages_for iso | head -n 1)}
    [[ $template_storage ]] || refuse "no storage allows container templates" "" "run pvesm set local --content iso,vztmpl,backup"
    [[ $iso_storage ]] || refuse "no storage allows ISO images" "" "run pvesm set local --content iso,vztmpl,backup"
    choose_root "${roots[@]}"
    if ((${#measured[@]} == 0)); then
        local storage
        for storage in "${disks[@]}"; do [[ $storage == "$root_storage" ]] || measured+=("$storage"); done
    fi
    ((${#measured[@]})) || refuse "no storage to measure" \
        "$root_storage is the only disk storage, and contains the container" \
        "select another storage for the container with --root-storage, or one to measure with --storage"
    local storage
    need_name --iso-storage "$iso_storage"
    for storage in "${measured[@]}"; do
        is_in "$storage" "${disks[@]}" || refuse "storage $storage is missing, inactive or does not allow disk images"
        need_name --storage "$storage"
        [[ $storage != "$root_storage" ]] || refuse "$storage is selected for both measuring and the container" \
            "the container's writes would affect every result" "select different storages with --root-storage and --storage"
    done
}

# By default not the only storage with disk images, so that one remains to measure.
choose_root() {
    local storage
    if [[ $root_storage ]]; then
        is_in "$root_storage" "$@" || refuse "storage $root_storage is missing, inactive or does not allow containers" \
            "" "run pvesm set $root_storage --content …,rootdir"
        return
    fi
    for storage in "$@"; do
        if ((${#measured[@]})) && is_in "$storage" "${measured[@]}"; then continue; fi
        # Prefer a storage without VM disks, so that all others can be measured.
        if is_in "$storage" "${disks[@]}"; then
            root_storage=${root_storage:-$storage}
        else
            root_storage=$storage
            return
        fi
    done
    [[ $root_storage ]] || refuse "no storage for the container's disk except measured ones" \
        "no other storage has content type rootdir" "allow it on another storage, such as: pvesm set local --content iso,vztmpl,backup,rootdir"
}

node_address() {
    ip -json -4 address show dev "$bridge" 2>/dev/null |
        sed -n 's/.*"local": *"\([0-9.]*\)".*/\1/p' | head -n 1
}

# --- container ----------------------------------------------------------------------------------

fetch_package() {
    if [[ $deb == http://* || $deb == https://* ]]; then
        [[ $sha256 ]] || refuse "a package URL requires --sha256" "" "copy the checksum from SHA256SUMS of the release"
        curl --fail --silent --show-error --location --output "$work/pvebench.deb" "$deb" ||
            refuse "downloading $deb failed"
    else
        [[ -f $deb ]] || refuse "file $deb not found"
        cp -- "$deb" "$work/pvebench.deb"
    fi
    if [[ $sha256 ]] && ! echo "$sha256  $work/pvebench.deb" | sha256sum --check --status; then
        refuse "checksum of $deb differs from --sha256" "it is damaged, or a different file"
    fi
    local version
    processor=$(dpkg-deb --field "$work/pvebench.deb" Architecture 2>/dev/null) || refuse "$deb is not a Debian package"
    version=$(dpkg-deb --field "$work/pvebench.deb" Version 2>/dev/null) || refuse "$deb is not a Debian package"
    [[ $(dpkg-deb --field "$work/pvebench.deb" Package) == pvebench && $version == *~deb* ]] ||
        refuse "$deb is not a package of pvebench" "" "use pvebench_VERSION_deb13_amd64.deb"
    debian=${version##*~deb}
}

# Newest template on stdin for this Debian release and processor.
newest_template() { { grep -oE "(\S+:vztmpl/)?debian-$debian-standard_\S+_$processor\.\S+" || true; } | sort -V | tail -n 1; }

# Set `template`; download it if missing.
have_template() {
    template=$(pveam list "$template_storage" | newest_template)
    [[ -z $template ]] || return 0
    pveam update >/dev/null
    local name
    name=$(pveam available --section system | newest_template)
    [[ $name ]] || refuse "no template of Debian $debian" "this Proxmox VE is too old for it, or downloading the list failed" "use the package for another Debian release"
    say "downloading $name to $template_storage"
    template=$template_storage:vztmpl/$name
    note "template $template"
    pveam download "$template_storage" "$name" >/dev/null
    # pveam returns 0 even if the task failed.
    [[ $(pveam list "$template_storage" | newest_template) ]] ||
        refuse "downloading $name failed" "see the output of pveam above" "fix the cause, then repeat the command"
}

# Not piped into grep -q: it exits early, and the other program would fail with SIGPIPE.
is_own() {
    local config
    config=$(pct config "$1" 2>/dev/null) && grep -q "^tags:.*\b$mark\b" <<<"$config"
}

have_container() {
    local network="name=eth0,bridge=$bridge,ip=$address"
    [[ -z $gateway ]] || network+=",gw=$gateway"
    local before
    before=$(noted container | tail -n 1)
    if [[ $before ]] && is_own "$before"; then
        [[ -z $ctid || $ctid == "$before" ]] || refuse "container $before exists already, with another ID than $ctid" "" "run $0 --remove, then repeat the command"
        ctid=$before
        say "container $ctid exists already"
    else
        ctid=${ctid:-$(pvesh get /cluster/nextid --output-format json | tr -d '"')}
        [[ $ctid =~ ^[1-9][0-9]{2,8}$ ]] || refuse "$ctid is not a container ID" "" "use --ctid with a number above 99"
        ! pct config "$ctid" >/dev/null 2>&1 || refuse "container $ctid exists and was not created by this script"
        have_template
        note "container $ctid"
        # systemd's sandboxes require nesting.
        pct create "$ctid" "$template" --unprivileged 1 --features nesting=1 --hostname "$hostname" \
            --cores "$cores" --memory "$memory" --swap 0 --rootfs "$root_storage:$disk" \
            --net0 "$network" --onboot 1 --tags "$mark" \
            --description "Created by proxmox-lxc.sh of pvebench; its option --remove removes it." >/dev/null
    fi
    [[ $(pct status "$ctid") == "status: running" ]] || pct start "$ctid"
    in_container 90 sh -c "$wait_for_network" || refuse "container $ctid has no address after a minute" \
        "no DHCP on $bridge" "run $0 --remove, then repeat the command with --ip and --gateway"
    find_address
}

# Set `reached` to the first IPv4 address of the container.
find_address() {
    local -a addresses
    must_answer "its addresses" '[0-9a-f.:]{2,45}( [0-9a-f.:]{2,45}){0,9} ?' hostname -I
    read -ra addresses <<<"$answer"
    reached=$hostname
    local candidate
    for candidate in "${addresses[@]}"; do
        [[ $candidate == *.* ]] || continue
        reached=$candidate
        break
    done
}

# shellcheck disable=SC2016 # expanded in the container
readonly wait_for_network='for _ in $(seq 60); do [ -n "$(hostname -I)" ] && exit 0; sleep 1; done; exit 1'

# SECONDS COMMAND…: run pct with a time limit, in a session without this terminal: a program with
# access to it could type commands on the node.
attach() { setsid --wait timeout --kill-after=5 "$1" pct exec "$ctid" -- "${@:2}" </dev/null; }

# SECONDS COMMAND…: run a command in the container. Its output is shown as printable ASCII with a
# prefix, at most 64 KiB. It runs in the background, so that Ctrl-C stops the script immediately.
in_container() {
    local seconds=$(($1 < longest ? $1 : longest)) status=0
    {
        attach "$seconds" "${@:2}" 2>&1 | timeout "$((seconds + 6))" tr -c '\n -~' '?' |
            { head -c 65536 && cat >/dev/null; } | awk '{ print "container: " $0 }' >&2
        exit "${PIPESTATUS[0]}"
    } &
    wait $! || status=$?
    ((status != 124 && status != 137)) || refuse "container $ctid did not finish in $seconds s: ${*:2}" \
        "it hangs or was tampered with" "inspect it with pct enter $ctid"
    return "$status"
}

# COMMAND…: set `answer` to its output in the container, at most 1100 bytes.
ask_container() {
    local seconds=$((60 < longest ? 60 : longest))
    { attach "$seconds" "$@" 2>/dev/null | timeout "$((seconds + 6))" head -c 1100 >"$work/answer"; } &
    wait $! || true
    answer=$(tr '\0' '?' <"$work/answer")
}

# WHAT PATTERN COMMAND…: exit unless the whole output matches the pattern.
must_answer() {
    ask_container "${@:3}"
    [[ ${#answer} -le 1024 && $answer =~ ^($2)$ ]] || refuse \
        "container $ctid returned an invalid value for $1: '$(printable "${answer:0:80}")'" \
        "it is damaged or was tampered with" "inspect it with pct enter $ctid, or remove it with $0 --remove"
}

printable() { printf %s "$1" | tr -c ' -~' '?'; }

# `pct push` returns 0 even if the task failed, so the copy is verified.
put() {
    pct push "$ctid" "$@"
    ask_container sha256sum "$2"
    [[ ${answer%% *} == "$(sha256sum <"$1" | cut -d' ' -f1)" ]] ||
        refuse "copying $2 to container $ctid failed" "see the output of pct above; its disk may be full" "fix the cause, then repeat the command"
}

install_package() {
    put "$work/pvebench.deb" /root/pvebench.deb
    in_container 1800 apt-get -qq update
    # Without QEMU, since the VM runs on the node.
    in_container 3600 env DEBIAN_FRONTEND=noninteractive apt-get -qq install --yes --no-install-recommends \
        -o Dpkg::Options::=--force-confold /root/pvebench.deb
    in_container 60 rm /root/pvebench.deb
    find_owner
}

# Set `owner` and `group`, the IDs of user and group pvebench in the container.
find_owner() {
    must_answer "the ID of its user pvebench" '[1-9][0-9]{0,4}' id -u pvebench
    owner=$answer
    must_answer "the ID of its group pvebench" 'pvebench:x?:[1-9][0-9]{0,4}:[a-z_,-]{0,100}' getent group pvebench
    IFS=: read -r _ _ group _ <<<"$answer"
}

write_settings() {
    local name storage certificate
    {
        echo "# Created by proxmox-lxc.sh. Keys: /usr/share/doc/pvebench/docs/proxmox.md."
        echo "driver: proxmox"
        echo "state: /var/lib/pvebench"
        echo "guest_image: /var/cache/pvebench/guest"
        echo "packs: [upgrade-watch]"
        echo "listen: \"$listen\""
        [[ -z $web_config ]] || echo "web_config_file: web.yml"
        echo "proxmox:"
        echo "  host: \"$host\""
        echo "  nodes: [\"$node\"]"
        echo "  version: $major"
        echo "  token_file: token"
        echo "  pool: \"$pool\""
        echo "  iso_storage: \"$iso_storage\""
        # A custom certificate is identified by its fingerprint, since its CA is unknown here.
        if [[ -f $pve/local/pveproxy-ssl.pem ]]; then
            certificate=$(openssl x509 -noout -fingerprint -sha256 -in "$pve/local/pveproxy-ssl.pem")
            echo "  tls: {fingerprint: \"${certificate#*=}\"}"
        else
            echo "  tls: {ca_file: pve-root-ca.pem}"
        fi
        echo "  storages:"
        for storage in "${measured[@]}"; do
            # Packs without a storage measure `local`.
            name=$(tr 'A-Z.' 'a-z-' <<<"$storage")
            if [[ $storage == "${measured[0]}" ]] && ! is_in local "${measured[@]}"; then name=local; fi
            echo "    \"$name\": {type: $(type_of "$storage"), id: \"$storage\"}"
        done
    } >"$work/pvebench.yaml"
    put "$work/pvebench.yaml" /etc/pvebench/pvebench.yaml --perms 0640 --group "$group"
    put "$pve/pve-root-ca.pem" /etc/pvebench/pve-root-ca.pem --perms 0644
    [[ -z $web_config ]] || put_secret "$web_config" /etc/pvebench/web.yml
}

# --- rights -------------------------------------------------------------------------------------

# --- generated from drivers/proxmox/setup/permissions.py by make generate ---
readonly pve_token=bench longest_pool=51
user_of() { case "$1" in pvebench) echo pvebench@pve ;; *) echo "pvebench-$1@pve" ;; esac; }
end_token() { pveum user token delete "$pve_user" bench; }
make_grants() {
    local storage
    listed roleid StorageBenchVM pveum role list || made pveum role add StorageBenchVM
    case "$major" in 8) pveum role modify StorageBenchVM --privs 'Datastore.AllocateSpace Datastore.AllocateTemplate Datastore.Audit Pool.Audit VM.Allocate VM.Audit VM.Config.CDROM VM.Config.CPU VM.Config.Disk VM.Config.HWType VM.Config.Memory VM.Config.Options VM.Monitor VM.PowerMgmt' ;; 9) pveum role modify StorageBenchVM --privs 'Datastore.AllocateSpace Datastore.AllocateTemplate Datastore.Audit Pool.Audit VM.Allocate VM.Audit VM.Config.CDROM VM.Config.CPU VM.Config.Disk VM.Config.HWType VM.Config.Memory VM.Config.Options VM.GuestAgent.Unrestricted VM.PowerMgmt' ;; esac
    listed roleid StorageBenchNode pveum role list || made pveum role add StorageBenchNode
    pveum role modify StorageBenchNode --privs Sys.Audit
    listed poolid "$pool" pveum pool list || made pveum pool add "$pool"
    for storage in "${measured[@]}" "$iso_storage"; do listed storage "$storage" pvesh get /pools/"$pool" || made pveum pool modify "$pool" --storage "$storage"; done
    listed userid "$pve_user" pveum user list || made pveum user add "$pve_user"
    listed tokenid bench pveum user token list "$pve_user" || made pveum user token add "$pve_user" bench --privsep 1
    pveum user token modify "$pve_user" bench --privsep 1
    pveum acl modify /pool/"$pool" --users "$pve_user" --roles StorageBenchVM
    pveum acl modify /pool/"$pool" --tokens "$pve_user!$pve_token" --roles StorageBenchVM
    pveum acl modify /nodes --users "$pve_user" --roles StorageBenchNode
    pveum acl modify /nodes --tokens "$pve_user!$pve_token" --roles StorageBenchNode
}
# --- end of the generated part ---

# KEY VALUE COMMAND…: check whether the listing has that member.
listed() {
    local listing
    listing=$("${@:3}" --output-format json) || refuse "command failed on the node: ${*:3}" "see its output above" \
        "fix the cause, then repeat the command"
    grep -q "\"$1\" *: *\"${2//./[.]}\"" <<<"$listing"
}

# COMMAND…: record it, then run it.
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
    in_container 60 test -s /etc/pvebench/token || refuse "the server did not show the token's secret"
}

# Replace a token whose secret was lost by an interruption, if this script created it.
new_token() {
    local listed
    listed=$(pveum user token list "$pve_user" --output-format json 2>/dev/null || true)
    [[ $listed == *"\"$pve_token\""* ]] || return 0
    if [[ $(noted grant) != *"pveum user token add $pve_user "* ]]; then
        refuse "token $pve_user!$pve_token exists, but its secret is unknown here" \
            "another pvebench uses it" "set its secret with --token-file FILE, with $pve_user!$pve_token=SECRET in it"
    fi
    end_token
}

keep_token() {
    (umask 077 && printf '%s\n' "$1" >"$work/token")
    put_secret "$work/token" /etc/pvebench/token
}

put_secret() { put "$1" "$2" --perms 0600 --user "$owner" --group "$group"; }

# --- installation and removal -------------------------------------------------------------------

make_all() {
    [[ $deb ]] || { usage >&2; exit 2; }
    node=$(hostname)
    node=${node%%.*} # as in Proxmox VE
    major=$(pveversion | sed -n 's,^pve-manager/\([0-9]*\)\..*,\1,p')
    [[ $major == 8 || $major == 9 ]] || refuse "not a node of Proxmox VE 8 or 9" "" "run this script as root on a node"
    host=${host:-$(node_address)}
    [[ $host ]] || refuse "$bridge has no address of this node" "" "set --host to an address that the container can reach"
    [[ $listen =~ ^[0-9.]+:[0-9]+$ ]] || refuse "--listen $listen is not an IPv4 address with a port" "" "use --listen 0.0.0.0:10620 or 127.0.0.1:10620"
    [[ -z $web_config || -f $web_config ]] || refuse "file $web_config not found"
    need_name --pool "$pool"
    ((${#pool} <= longest_pool)) || refuse "--pool $pool has more than $longest_pool characters"
    pve_user=$(user_of "$pool")
    choose_storages
    fetch_package
    say "container on $root_storage (Debian $debian, $cores cores, $memory MiB), measuring ${measured[*]} of $node"
    say "results are readable by $(readers)"
    agree "create it, with roles, a user, a token and the pool $pool?"
    have_container
    install_package
    write_settings
    grant_rights
    in_container 60 systemctl enable pvebench.service
    in_container 600 systemctl restart pvebench.service || refuse "pvebench did not start" \
        "" "check the log: pct exec $ctid -- journalctl -u pvebench"
    say "results: $(page) (the first after a few minutes)"
    say "results are readable by $(readers)"
    say "check the installation: pct exec $ctid -- pvebench check --config /etc/pvebench/pvebench.yaml"
}

page() {
    local scheme=http found=${listen%:*}
    if [[ $found == 0.0.0.0 ]]; then found=$reached; fi
    if [[ $web_config ]] && grep -q '^tls_server_config:' "$web_config"; then scheme=https; fi
    echo "$scheme://$found:${listen##*:}/"
}

readers() {
    if [[ $listen == 127.* ]]; then
        echo "programs in the container only (to change that, repeat the command with --listen 0.0.0.0:10620)"
    elif [[ $web_config ]]; then
        echo "the users in $web_config"
    else
        echo "everyone who can reach the container on $bridge, without login (--web-config FILE adds users, --listen 127.0.0.1:10620 denies remote access)"
    fi
}

remove_all() {
    [[ -s $journal ]] || { say "nothing to remove"; return; }
    say "created here: $(cut -d' ' -f1,2 "$journal" | sort | uniq -c | awk '{ print $2, $3 }' | paste -sd, | sed 's/,/, /g')"
    agree "remove everything, including results?"
    local entry
    # Not on stdin, which programs in a container may read.
    while IFS= read -r -u 3 entry; do
        undo "$entry" || refuse "removal failed: $entry" "see above" "fix the cause, then repeat --remove; $journal lists the rest"
        forget "$entry"
    done 3< <(tac "$journal" | awk '/^container / { first = first $0 "\n"; next } { rest = rest $0 "\n" } END { printf "%s%s", first, rest }')
    rm -f "$journal"
    say "removed"
}

# Undo one line of the list; missing objects need no action.
undo() {
    local -a words
    local listed
    read -ra words <<<"$1"
    case "$1" in
        "container "*)
            pct config "${words[1]}" >/dev/null 2>&1 || return 0
            is_own "${words[1]}" || refuse "container ${words[1]} no longer has the tag $mark" \
                "it was replaced or changed" "remove it manually, or delete the line in $journal"
            if [[ $(pct status "${words[1]}") == "status: running" ]]; then
                # A regular stop also removes pvebench's VM and volumes.
                (ctid=${words[1]} && in_container 600 systemctl stop pvebench.service) || true
                pct stop "${words[1]}"
            fi
            pct destroy "${words[1]}" --purge 1
            ;;
        "template "*)
            listed=$(pveam list "${words[1]%%:*}")
            [[ $listed != *"${words[1]}"* ]] || pveam remove "${words[1]}"
            ;;
        "grant pveum role add "*) gone "role list" "${words[4]}" || granted "${words[4]}" || pveum role delete "${words[4]}" ;;
        "grant pveum pool add "*) gone "pool list" "${words[4]}" || pveum pool delete "${words[4]}" ;;
        "grant pveum pool modify "*)
            gone "pool list" "${words[4]}" && return
            listed=$(pvesh get "/pools/${words[4]}" --output-format json)
            ! grep -q "\"storage\" *: *\"${words[6]//./[.]}\"" <<<"$listed" ||
                pveum pool modify "${words[4]}" --storage "${words[6]}" --delete 1
            ;;
        "grant pveum user add "*) gone "user list" "${words[4]}" || pveum user delete "${words[4]}" ;;
        "grant pveum user token add "*) gone "user token list ${words[5]}" "${words[6]}" || pveum user token delete "${words[5]}" "${words[6]}" ;;
        *) refuse "invalid line in $journal: $1" ;;
    esac
}

# Check whether an ACL uses the role: another pool may need it.
granted() {
    local listed
    listed=$(pveum acl list --output-format json) || refuse "listing ACLs failed" "see above"
    [[ $listed == *"\"$1\""* ]] && say "role $1 stays: other ACLs use it"
}

# Check that a listing of pveum no longer has a name.
gone() {
    local listed
    # shellcheck disable=SC2086 # words of a command
    listed=$(pveum $1 --output-format json 2>/dev/null) || return 0
    [[ $listed != *"\"$2\""* ]]
}

yes='' remove='' deb='' sha256='' root_storage='' template_storage='' iso_storage='' ctid=''
hostname=pvebench cores=2 memory=1024 disk=8 bridge=vmbr0 address=dhcp gateway='' pool=pvebench
host='' listen=0.0.0.0:10620 web_config='' token_file='' pve=${PVEBENCH_LXC_PVE:-/etc/pve}
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

[[ ${EUID:-$(id -u)} == 0 ]] || refuse "not root" "" "run this script as root on the node"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
if [[ $remove ]]; then remove_all; else make_all; fi

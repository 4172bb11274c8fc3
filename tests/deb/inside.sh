#!/bin/bash
# Runs as a service of a booted container: installs, upgrades, refuses, removes, purges for real.
# /test has older.deb and newer.deb of one release and old.db, a database of the first schema.
# shellcheck disable=SC2016 # what until_true is given, it expands each time
set -euo pipefail
export DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8
readonly settings=/etc/pvebench/pvebench.yaml state=/var/lib/pvebench

say() { echo "$(cut -d. -f1 /proc/uptime)s  $*"; }
fail() { echo "FAIL  $*"; exit 1; }
is() { [[ $2 == "$3" ]] || fail "$1: expected '$3', found '$2'"; echo "ok    $1: $2"; }
has() { [[ $2 == *"$3"* ]] || fail "$1: '$3' is not in '$2'"; echo "ok    $1"; }
property() { systemctl show -P "$1" pvebench.service; }
schema() { python3 -c "import sqlite3; print(sqlite3.connect('$state/pvebench.db').execute('pragma user_version').fetchone()[0])"; }
runs() { python3 -c "import sqlite3; print(sqlite3.connect('file:$state/pvebench.db?mode=ro',uri=True).execute('select count(*) from runs').fetchone()[0])"; }
until_true() {
    local _
    for _ in $(seq 600); do
        if eval "$1"; then return; fi
        sleep 0.5
    done
    journalctl --no-pager -u pvebench -n 40
    fail "never: $1"
}

apt() { apt-get -qq --yes --no-install-recommends "$@" >/test/apt.log 2>&1; }
repository() { # NAME: what is published now
    ln -sfn "$1" /test/repository
    apt update || { cat /test/apt.log; fail update; }
}

say "install from the repository"
suite=$(sed -n s/^VERSION_CODENAME=//p /etc/os-release)
: >/etc/apt/sources.list  # no network
rm -f /etc/apt/sources.list.d/*
cp "/test/older/publish/apt/$suite.sources" /etc/apt/sources.list.d/pvebench.sources
repository older
apt install pvebench || { cat /test/apt.log; fail apt; }
is "unasked it is not started" "$(systemctl is-active pvebench || true)" inactive
is "unasked it is not enabled" "$(systemctl is-enabled pvebench || true)" disabled
is "the system user" "$(getent passwd pvebench | cut -d: -f6,7)" /var/lib/pvebench:/usr/sbin/nologin
is "results are the user's" "$(stat -c '%U %a' $state)" "pvebench 750"
is "settings are read by the service only" "$(stat -c '%U:%G %a' /etc/pvebench)" "root:pvebench 750"
has "the command" "$(pvebench --version)" "pvebench $(dpkg-deb -f /test/newer.deb Version | cut -d'~' -f1)"
has "the libraries fit this Python" "$(/usr/lib/pvebench/bin/python3 -I -c 'import numpy, pydantic, sqlalchemy, bcrypt; print("all")')" all
has "the packs came along" "$(cd / && pvebench packs)" quick
has "the manual" "$(man -P cat pvebench)" "pvebench serve"
test -s /usr/share/bash-completion/completions/pvebench || fail completion
has "completion" "$(bash -c '. /usr/share/bash-completion/completions/pvebench; complete -p pvebench')" _pvebench_completion
systemd-analyze verify /usr/lib/systemd/system/pvebench.service || fail verify
has "hardening" "$(systemd-analyze security --threshold=20 --no-pager pvebench.service | tail -n 1)" "Overall exposure"
systemd-analyze security --no-pager pvebench.service | tail -n 1

say "a database of the first schema"
sed -i "s/^driver:.*/driver: ${DRIVER:-simulated}/" $settings
install -o pvebench -g pvebench -m 600 /test/old.db $state/pvebench.db
before=$(runs)
was=$(schema)
systemctl enable --quiet --now pvebench
is "it is ready when start returns" "$(systemctl is-active pvebench)" active
until_true 'curl -sf http://127.0.0.1:10620/-/ready >/dev/null'
until_true '(( $(runs) > before ))'
is "the schema is the package's" "$(schema)" "$(/usr/lib/pvebench/bin/python3 -I -c 'from pvebench.store.tables import SCHEMA; print(SCHEMA)')"
say "measured: $before runs of schema $was became $(runs) of schema $(schema)"
is "it runs as" "$(ps -o user= -p "$(property MainPID)" 2>/dev/null || stat -c %U "/proc/$(property MainPID)")" pvebench
has "what it is at is told" "$(property StatusText)" "metrics on"
systemctl reload pvebench
is "reload" "$(systemctl is-active pvebench)" active

say "watchdog"
mkdir -p /run/systemd/system/pvebench.service.d
printf '[Service]\nWatchdogSec=6\nRestartSec=1\n' >/run/systemd/system/pvebench.service.d/quick.conf
systemctl daemon-reload
systemctl restart pvebench
first=$(property MainPID)
sleep 15
is "beats keep it" "$(property MainPID) $(property NRestarts)" "$first 0"
kill -STOP "$first"
until_true '[[ $(property NRestarts) == 1 && $(systemctl is-active pvebench) == active ]]'
say "a process that stood still was ended and started again"
rm -r /run/systemd/system/pvebench.service.d
systemctl daemon-reload
systemctl restart pvebench

drop_in=/run/systemd/system/pvebench.service.d

say "what is tried again, and what is not"
mkdir -p $drop_in
printf '[Service]\nRestartSec=1\n' >$drop_in/quick.conf
cp -p $settings /test/settings
again() { # NAME FILE-OF-SETTINGS EXIT-CODE: it fails, and is started, as long as that lasts
    install -m 640 -g pvebench "$2" $settings
    systemctl daemon-reload
    systemctl restart pvebench || true
    until_true '(( $(property NRestarts) >= 3 ))'
    until_true "[[ \$(property ExecMainStatus) == $3 ]]"  # 0 while it runs
    echo "ok    $1: ended with $3 and started again, three times"
}
systemctl stop pvebench
echo 'no_such_key: 1' | cat /test/settings - >$settings
if systemctl start pvebench; then fail "wrong settings were taken"; fi
sleep 4
is "wrong settings end it for good" "$(property ActiveState) $(property NRestarts) $(property ExecMainStatus)" "failed 0 2"
printf 'pvebench@pve!pvebench=01234567-89ab-cdef-0123-456789abcdef\n' >/etc/pvebench/token
chown pvebench /etc/pvebench/token
chmod 600 /etc/pvebench/token
{ grep -v '^driver:' /test/settings | sed 's,^state:.*,state: /var/lib/pvebench/away,' && cat; } >/test/away <<'Y'
driver: proxmox
proxmox:
  host: 127.0.0.1
  port: 9
  nodes: [pve1]
  token_file: token
  tls: {fingerprint: "00:11:22:33:44:55:66:77:88:99:AA:BB:CC:DD:EE:FF:00:11:22:33:44:55:66:77:88:99:AA:BB:CC:DD:EE:FF"}
  storages:
    local: {type: dir, id: local}
Y
# Before it asks a cluster it makes the guest's image, for which this container reaches no mirror.
again "a mirror that is away" /test/away 7
python3 -m http.server --bind 127.0.0.1 10629 >/dev/null 2>&1 &
other=$!
sed 's/:10620/:10629/' /test/settings >/test/taken
again "a port that another program has" /test/taken 3
kill $other
until_true '[[ $(systemctl is-active pvebench) == active ]]'
say "the port was free, and it came by itself"
cp -p /test/settings $settings
rm /etc/pvebench/token

say "devices"
# What the service sees of them, with everything that the unit takes away, as its user. Without the
# hardware what may be opened ends otherwise: ENODEV, ENXIO.
mknod -m 660 /dev/kvm c 10 232
chgrp kvm /dev/kvm
mknod -m 660 /dev/loop0 b 7 0
chgrp disk /dev/loop0
cat >$drop_in/look.conf <<'U'
[Service]
ExecStartPre=/usr/bin/python3 -I /test/devices.py /var/lib/pvebench/devices
U
cat >/test/devices.py <<'P'
import errno, os, sys
def opened(path):
    try:
        os.close(os.open(path, os.O_RDWR))
    except OSError as error:
        return "opens" if error.errno in (errno.ENODEV, errno.ENXIO) else errno.errorcode[error.errno]
    return "opens"
with open(sys.argv[1], "w") as told:
    print("kvm", opened("/dev/kvm"), "loop0", opened("/dev/loop0"), file=told)
P
seen() { # DROP-IN…: what the service can open with them
    local name
    for name; do ln -s /usr/share/pvebench/systemd/"$name" $drop_in/; done
    systemctl daemon-reload
    systemctl restart pvebench
    cat $state/devices
    for name; do rm $drop_in/"$name"; done
}
is "as it comes it sees neither" "$(seen)" "kvm ENOENT loop0 ENOENT"
is "with kvm.conf" "$(seen kvm.conf)" "kvm opens loop0 EACCES"
is "with block.conf" "$(seen block.conf)" "kvm EACCES loop0 opens"
is "with both" "$(seen kvm.conf block.conf)" "kvm opens loop0 opens"
# Groups alone do not do it: the kernel asks the unit's list of devices too.
printf '[Service]\nPrivateDevices=no\nSupplementaryGroups=disk kvm\n' >$drop_in/groups.conf
is "with the groups, but no device allowed" "$(seen)" "kvm EPERM loop0 EPERM"
rm -r $drop_in
systemctl daemon-reload
systemctl restart pvebench

say "upgrade while it runs"
kept=$(runs)
first=$(property MainPID)
repository newer
apt upgrade || { cat /test/apt.log; fail apt; }
is "it runs again" "$(systemctl is-active pvebench)" active
[[ $(property MainPID) != "$first" ]] || fail "it was not restarted"
(($(runs) >= kept)) || fail "runs were lost"
has "settings of the administrator stay" "$(cat $settings)" "driver: ${DRIVER:-simulated}"
dpkg --verify pvebench | grep -v pvebench.yaml && fail "files differ from the package"

say "downgrade with newer results"
systemctl stop pvebench
# Only of an enabled unit: systemd may forget one that nothing refers to with its exit code, which
# then reads 0 (systemd.unit(5); seen on 12 and 13 with a unit of three lines).
is "it ended as asked" "$(property Result) $(property ExecMainStatus)" "success 130"
python3 - "$state/pvebench.db" <<'P'
import sqlite3, sys
with sqlite3.connect(sys.argv[1]) as db:
    db.execute("PRAGMA user_version = 999")
P
old=$(dpkg-deb -f /test/older.deb Version)
if apt install --allow-downgrades "pvebench=$old"; then fail "the downgrade was not refused"; fi
has "the refusal says why" "$(cat /test/apt.log)" "has schema 999; version"
has "and what to do" "$(cat /test/apt.log)" "next step:"
is "the newer one stays" "$(dpkg-query -Wf '${Status} ${Version}' pvebench)" "install ok installed $(dpkg-deb -f /test/newer.deb Version)"
has "and works" "$(pvebench --version)" "pvebench $(dpkg-deb -f /test/newer.deb Version | cut -d'~' -f1)"
rm $state/pvebench.db*
install -o pvebench -g pvebench -m 600 /test/old.db $state/pvebench.db
apt install --allow-downgrades "pvebench=$old" || { cat /test/apt.log; fail "a downgrade that can read the results was refused"; }
say "an older one that can read the results was let in"

say "remove, and back"
systemctl start pvebench
until_true '(( $(runs) > before ))'
kept=$(runs)
apt remove pvebench || { cat /test/apt.log; fail remove; }
is "the process is gone" "$(systemctl is-active pvebench || true)" inactive
(($(runs) >= kept)) || fail "results went with the package"
[[ ! -e /usr/lib/pvebench ]] || fail "left: $(find /usr/lib/pvebench | head)"
apt install pvebench || { cat /test/apt.log; fail apt; }
(($(runs) >= kept)) || fail "results went"
say "purge"
echo secret >/etc/pvebench/token
apt purge pvebench || { cat /test/apt.log; fail purge; }
# Purge removes only the names that the service makes; these are this script's own.
is "files of others stay" "$(cd $state && echo *)" "away devices"
for path in /var/cache/pvebench /etc/pvebench /usr/lib/pvebench /usr/share/pvebench \
    /etc/systemd/system/multi-user.target.wants/pvebench.service; do
    [[ ! -e $path && ! -L $path ]] || fail "left: $(find "$path" | head)"
done
is "the number of the user is given to nobody else" "$(getent passwd pvebench | cut -d: -f1)" pvebench
say "all checks hold"

#!/usr/bin/env bash
# The storages of a VM or a process that plays the host: made of its disks, and taken away again.
#
#   storages.sh make NAME       prints the directory, or the device if NAME is one
#   storages.sh unmake NAME     nothing is left of it on the disks
#   storages.sh again NAME      prints the directory, after a boot; the disks are as they were
#   storages.sh counters        a line per second: bytes read from all disks, hits and misses of the ARC
#   storages.sh show NAME       what the kernel says of it: proof that it is what its name says
set -euo pipefail
export LC_ALL=C

# By serial number: the order in which the kernel finds disks is nobody's promise.
disk() { readlink -f "/dev/disk/by-id/virtio-pvebench-$1"; }

D1=$(disk d1) D2=$(disk d2) D3=$(disk d3) D4=$(disk d4)

# A file system on a device, with a directory of the user's.
mounted() { # DEVICE MKFS…
    local device=$1
    shift
    "$@" "$device" >&2
    mkdir -p /srv/bench
    mount "$device" /srv/bench
    directory /srv/bench
}

directory() {
    install -d -o pvebench -m 700 "$1/pvebench"
    echo "$1/pvebench"
}

ext4() { mounted "$1" mkfs.ext4 -q -F -E lazy_itable_init=0,lazy_journal_init=0; }

# The directory is a subvolume, as Proxmox makes one for each volume: its files' number is its own.
on_btrfs() { # PROFILE DISK…
    local profile=$1
    shift
    mkfs.btrfs -q -f -d "$profile" -m "$profile" "$@" >&2
    mkdir -p /srv/bench
    mount "$1" /srv/bench
    btrfs -q subvolume create /srv/bench/pvebench >&2
    directory /srv/bench
}

group() { # DISK…
    vgcreate --quiet --yes bench "$@" >&2
}

# Four fifths of the slow disk, as a plain volume; the quick one is the cache's.
origin() { lvcreate --quiet --yes --wipesignatures y --name data --size 2G bench "$D1" >&2; }

cached() { # MODE
    group "$D1" "$D2"
    origin
    lvcreate --quiet --yes --type cache-pool --name fast --size 512M bench "$D2" >&2
    lvconvert --quiet --yes --type cache --cachepool fast --cachemode "$1" bench/data >&2
    ext4 /dev/bench/data
}

array() { # LEVEL DISK…
    local level=$1
    shift
    # The disks are all zeros, so copies are equal as they are.
    mdadm --create /dev/md0 --run --level="$level" --raid-devices=$# --assume-clean "$@" >&2
    udevadm settle
}

pool() { # VDEV…
    modprobe zfs
    zpool create -f -o ashift=12 bench "$@" >&2
    zfs create -V 2G -o volblocksize=8k bench/vol >&2
    udevadm settle
    readlink -f /dev/zvol/bench/vol
}

make() {
    case $1 in
    lvm | lvm-off) group "$D1" && origin && ext4 /dev/bench/data ;;
    lvm-writethrough) cached writethrough ;;
    lvm-writeback) cached writeback ;;
    lvm-thin)
        group "$D1"
        lvcreate --quiet --yes --type thin-pool --name pool --size 2G bench >&2
        lvcreate --quiet --yes --thin --virtualsize 2G --name data bench/pool >&2
        ext4 /dev/bench/data
        ;;
    raid0) array 0 "$D1" "$D2" && echo /dev/md0 ;;
    raid1) array 1 "$D1" "$D2" && echo /dev/md0 ;;
    md-raid10)
        array 10 "$D1" "$D2" "$D3" "$D4"
        group /dev/md0
        lvcreate --quiet --yes --wipesignatures y --name data --size 1500M bench >&2
        ext4 /dev/bench/data
        ;;
    plain) echo "$D4" ;;
    zvol) pool "$D1" ;;
    zfs-ssd-cache) pool "$D1" log "$D3" cache "$D2" ;;
    sata) readlink -f /dev/disk/by-id/ata-*pvebench-sata ;;
    xfs) mounted "$D1" mkfs.xfs -q -f ;;
    btrfs) on_btrfs single "$D1" ;;
    btrfs-raid1) on_btrfs raid1 "$D1" "$D2" ;;
    bcache)
        modprobe bcache
        make-bcache --wipe-bcache -B "$D1" -C "$D2" >&2
        for _ in $(seq 50); do [[ ! -b /dev/bcache0 ]] || break; sleep 0.2; done
        ext4 /dev/bcache0
        ;;
    cifs) cifs ;;
    nfs) nfs ;;
    iscsi) iscsi ;;
    *) echo "no storage $1" >&2 && exit 2 ;;
    esac
}

# Servers on the machine's own loopback address: no cable, but their whole protocol.

share() { # the directory that a server serves, on ext4 on the first disk
    mkfs.ext4 -q -F -E lazy_itable_init=0,lazy_journal_init=0 "$D1" >&2
    mkdir -p /srv/share /srv/bench
    mount "$D1" /srv/share
    chown pvebench: /srv/share
}

# The host in a process has no systemd.
start_smbd() { if [[ -d /run/systemd/system ]]; then systemctl start smbd.service; else smbd -D; fi; }
stop_smbd() {
    if [[ -d /run/systemd/system ]]; then systemctl stop smbd.service; else smbcontrol smbd shutdown; fi
}

cifs() {
    share
    cat >/etc/samba/smb.conf <<'END'
[global]
server role = standalone server
disable netbios = yes
smb ports = 445
interfaces = lo
bind interfaces only = yes
load printers = no
[bench]
path = /srv/share
read only = no
END
    printf 'pvebench\npvebench\n' | smbpasswd -s -a pvebench >&2
    start_smbd
    local owner
    owner="uid=$(id -u pvebench),gid=$(id -g pvebench)"
    mount -t cifs //127.0.0.1/bench /srv/bench -o "username=pvebench,password=pvebench,$owner"
    directory /srv/bench
}

nfs() {
    share
    echo '/srv/share 127.0.0.1(rw,no_root_squash,insecure,no_subtree_check)' >/etc/exports
    systemctl start nfs-server.service
    mount -t nfs4 127.0.0.1:/srv/share /srv/bench
    directory /srv/bench
}

iscsi() {
    systemctl start tgt.service iscsid.service
    tgtadm --lld iscsi --op new --mode target --tid 1 --targetname iqn.2000-01.org.example:bench
    tgtadm --lld iscsi --op new --mode logicalunit --tid 1 --lun 1 --backing-store "$D1"
    tgtadm --lld iscsi --op bind --mode target --tid 1 --initiator-address 127.0.0.1
    iscsiadm --mode discovery --type sendtargets --portal 127.0.0.1 >&2
    iscsiadm --mode node --login >&2
    udevadm settle
    ext4 "$(readlink -f /dev/disk/by-path/ip-127.0.0.1*-lun-1)"
}

again() {
    local device=$D1
    [[ $1 != lvm* ]] || { vgchange --quiet -ay bench >&2 && device=/dev/bench/data; }
    mkdir -p /srv/bench
    mount "$device" /srv/bench
    echo /srv/bench/pvebench
}

counters() {
    local disk number name value bytes arc
    while sleep 1; do
        bytes=0 arc=()
        for disk in "$D1" "$D2" "$D3" "$D4"; do
            read -r _ _ number _ <"/sys/block/${disk##*/}/stat"
            bytes=$((bytes + number * 512))
        done
        while read -r name _ value; do
            [[ $name != hits && $name != misses ]] || arc+=("$value")
        done </proc/spl/kstat/zfs/arcstats
        echo "$bytes ${arc[*]}"
    done
}

show() {
    case $1 in
    lvm* | md-raid10)
        dmsetup table
        [[ $1 != md-raid10 ]] || cat /proc/mdstat
        ;;
    raid*) cat /proc/mdstat ;;
    z*) zpool status bench && zfs list -t volume ;;
    sata) hdparm -W "$(make sata)" ;;
    btrfs*) btrfs filesystem df /srv/bench && btrfs filesystem show /srv/bench ;;
    *) findmnt --raw --noheadings --output FSTYPE,SOURCE,OPTIONS /srv/bench ;;
    esac
}

unmake() {
    ! mountpoint -q /srv/bench || umount /srv/bench
    # What a server serves is busy until it is stopped.
    case $1 in
    cifs) stop_smbd ;;
    nfs) systemctl stop nfs-server.service ;;
    iscsi)
        iscsiadm --mode node --logout >&2
        systemctl stop tgt.service iscsid.service iscsid.socket
        ;;
    zvol | zfs-ssd-cache) zpool destroy bench ;;
    bcache)
        echo 1 >/sys/block/bcache0/bcache/stop
        for set in /sys/fs/bcache/*-*; do echo 1 >"$set/stop"; done
        for _ in $(seq 100); do [[ -e /sys/block/bcache0 ]] || break; sleep 0.2; done
        ;;
    esac
    ! mountpoint -q /srv/share || umount /srv/share
    ! vgs bench >/dev/null 2>&1 || vgremove --quiet --force --yes bench >&2
    [[ ! -b /dev/md0 ]] || { pvremove --quiet --yes --force --force /dev/md0 >&2 2>&1 || true; }
    [[ ! -b /dev/md0 ]] || mdadm --stop /dev/md0 >&2
    udevadm settle
    for one in "$D1" "$D2" "$D3" "$D4"; do
        mdadm --zero-superblock "$one" 2>/dev/null || true
        wipefs --quiet --all "$one"
        blkdiscard --force "$one"
    done
}

verb=$1
shift
"$verb" "$@"

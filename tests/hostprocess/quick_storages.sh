#!/usr/bin/env bash
# Storages for `make test`, made with as few programs as possible: LVM takes seconds here.
#
#   /dev/md0            RAID 1 of the disks 1 and 2
#   /dev/mapper/cached  dm-cache, writethrough: disk 3 cached on disk 4
#   /dev/mapper/thin    a thin volume of 64 MiB in a pool on disk 5, as LVM-thin has it
#   /srv/nfs            NFS from a server in user space, which has ext4 on disk 6
set -euo pipefail

disk() { readlink -f "/dev/disk/by-id/virtio-pvebench-d$1"; }
sectors() { blockdev --getsz "$1"; }

# DEVICE: two linear parts of it, NAME-meta of 4 MiB and NAME-data.
split() { # NAME DEVICE
    dmsetup create "$1-meta" --table "0 8192 linear $2 0"
    dmsetup create "$1-data" --table "0 $(($(sectors "$2") - 8192)) linear $2 8192"
}

modprobe -a dm-cache dm-cache-smq dm-thin-pool

mdadm --create /dev/md0 --run --quiet --level=1 --raid-devices=2 --assume-clean "$(disk 1)" "$(disk 2)"

split fast "$(disk 4)"
dmsetup create cached --uuid quick-cached --table "0 $(sectors "$(disk 3)") cache \
    /dev/mapper/fast-meta /dev/mapper/fast-data $(disk 3) 128 1 writethrough smq 0"

split pool "$(disk 5)"
dmsetup create pool --table "0 $(sectors /dev/mapper/pool-data) thin-pool \
    /dev/mapper/pool-meta /dev/mapper/pool-data 128 0 1 skip_block_zeroing"
dmsetup message /dev/mapper/pool 0 'create_thin 0'
dmsetup create thin --uuid quick-thin --table '0 131072 thin /dev/mapper/pool 0'

mkfs.ext4 -q -F "$(disk 6)"
mkdir -p /srv/export /srv/nfs
mount "$(disk 6)" /srv/export
cat >/run/ganesha.conf <<'CONF'
NFS_CORE_PARAM { Protocols = 3; MNT_Port = 20048; Enable_NLM = false;
    Enable_RQUOTA = false; mount_path_pseudo = false; }
EXPORT { Export_Id = 1; Path = /srv/export; Pseudo = /e; Protocols = 3; Access_Type = RW;
    Squash = No_root_squash; FSAL { Name = VFS; } }
CONF
mkdir -p /run/rpcbind /run/ganesha /var/lib/nfs/ganesha
rpcbind
ganesha.nfsd -L /run/ganesha.log -p /run/ganesha.pid -f /run/ganesha.conf
for _ in $(seq 100); do
    ! rpcinfo -T tcp 127.0.0.1 mountd 3 >/dev/null 2>&1 || break
    sleep 0.1
done
mount -t nfs -o vers=3,tcp,nolock,mountport=20048 127.0.0.1:/srv/export /srv/nfs

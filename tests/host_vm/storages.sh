# Makes every storage that docs/published.md names, on the machine's own disks; run as root there.
set -eu

disk() { readlink -f "$(ls /dev/disk/by-path/*-scsi-0:0:"$1":0)"; }

use() { # NAME FILESYSTEM DEVICE: a directory /srv/NAME on it
    mkdir -p "/srv/$1"
    "mkfs.$2" -q "$3"
    mount "$3" "/srv/$1"
}

modprobe -a dm-cache dm-thin-pool raid0 raid1 raid10 bcache nfsd cifs iscsi_tcp
udevadm settle

mdadm -q --create /dev/md/r0 --run -l 0 -n 2 "$(disk 0)" "$(disk 1)"
mdadm -q --create /dev/md/r1 --run -l 1 -n 2 --assume-clean "$(disk 2)" "$(disk 3)"
mdadm -q --create /dev/md/r10 --run -l 10 -n 4 --assume-clean "$(disk 4)" "$(disk 5)" "$(disk 6)" "$(disk 7)"
use raid0 ext4 /dev/md/r0
use raid1 ext4 /dev/md/r1
use md-raid10 ext4 /dev/md/r10

# Slow disks 8, 10 and 11; 9 is the cache's.
vgcreate -q vg "$(disk 8)" "$(disk 9)" "$(disk 10)" "$(disk 11)"
lvcreate -qy -n off -L 480M vg "$(disk 8)"
lvcreate -qy -n writethrough -L 480M vg "$(disk 8)"
lvcreate -qy -n writeback -L 480M vg "$(disk 10)"
lvcreate -qy -n cleaner -L 480M vg "$(disk 10)"
for mode in writethrough writeback cleaner; do
    lvcreate -qy -n "fast-$mode" -L 96M vg "$(disk 9)"
    how=$mode policy=
    if [ "$mode" = cleaner ]; then how=writeback policy='--cachepolicy cleaner'; fi
    # shellcheck disable=SC2086 # an option and its value, or nothing
    lvconvert -qy --type cache --cachevol "fast-$mode" --cachemode "$how" $policy "vg/$mode"
done
lvcreate -qy -n lvm -L 440M vg "$(disk 11)"
lvcreate -qy -T -n pool -L 460M vg "$(disk 11)"
lvcreate -qy -V 480M -n thin --thinpool vg/pool
for mode in off writethrough writeback cleaner; do use "lvm-$mode" ext4 "/dev/vg/$mode"; done
use lvm ext4 /dev/vg/lvm
use thin ext4 /dev/vg/thin

make-bcache -B "$(disk 12)" -C "$(disk 13)" >/dev/null
udevadm settle
[ -b /dev/bcache0 ] || { echo "$(disk 12)" >/sys/fs/bcache/register_quiet || true; echo "$(disk 13)" >/sys/fs/bcache/register_quiet || true; sleep 2; }
use bcache ext4 /dev/bcache0
use xfs xfs "$(disk 14)"
use btrfs btrfs "$(disk 15)"

mkdir -p /srv/xfs/export /srv/xfs/share /srv/nfs /srv/cifs
echo '/srv/xfs/export 127.0.0.1(rw,no_root_squash,sync,no_subtree_check)' >/etc/exports
systemctl start nfs-server
mount -t nfs -o vers=4.2 127.0.0.1:/srv/xfs/export /srv/nfs

printf '[share]\npath = /srv/xfs/share\nread only = no\n' >/etc/samba/smb.conf
printf 'secret\nsecret\n' | smbpasswd -s -a root >/dev/null
systemctl start smbd
mount -t cifs -o username=root,password=secret,vers=3.1.1 //127.0.0.1/share /srv/cifs

systemctl start tgt iscsid
tgtadm --lld iscsi --op new --mode target --tid 1 -T iqn.2026-01.test:disk
tgtadm --lld iscsi --op new --mode logicalunit --tid 1 --lun 1 -b "$(disk 16)"
tgtadm --lld iscsi --op bind --mode target --tid 1 -I ALL
iscsiadm -m discovery -t sendtargets -p 127.0.0.1 >/dev/null
iscsiadm -m node -T iqn.2026-01.test:disk -p 127.0.0.1 --login >/dev/null
udevadm settle
use iscsi ext4 "$(readlink -f /dev/disk/by-path/ip-127.0.0.1:3260-iscsi-*-lun-1)"

cat /proc/mdstat
dmsetup status
df -h /srv/*

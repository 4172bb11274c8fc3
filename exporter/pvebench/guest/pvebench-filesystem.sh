#!/bin/busybox sh
# pvebench-filesystem make DEVICE TYPE | mount DEVICE TYPE [OPTIONS] | unmount
# The only filesystem on the test disk, at /mnt/test. Its creation discards nothing: reads of holes
# in the volume would bypass the storage.
point=/mnt/test

# Loaded modules are rejected; if one cannot be loaded, the mount fails.
load() {
	if [ -e "/lib/modules/$1.list" ]; then
		while read -r module; do
			insmod "$module" 2>/dev/null
		done <"/lib/modules/$1.list"
	fi
}

case $1 in
make)
	case $3 in
	# Written now: ext4 would otherwise initialize its tables during the measurement.
	ext4) mkfs.ext4 -q -F -E nodiscard,lazy_itable_init=0,lazy_journal_init=0 "$2" ;;
	xfs) mkfs.xfs -q -f -K "$2" ;;
	btrfs) mkfs.btrfs -q -f -K "$2" ;;
	*)
		echo "unknown filesystem: $3" >&2
		exit 1
		;;
	esac
	;;
mount)
	load "$3"
	mount -t "$3" ${4:+-o "$4"} "$2" "$point"
	;;
unmount) umount "$point" ;;
*)
	echo "usage: pvebench-filesystem make|mount|unmount" >&2
	exit 1
	;;
esac

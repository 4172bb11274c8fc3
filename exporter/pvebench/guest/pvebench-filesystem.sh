#!/bin/busybox sh
# pvebench-filesystem make DEVICE TYPE | mount DEVICE TYPE [OPTIONS] | unmount
# The one filesystem on the test disk, at /mnt/test. Nothing is discarded when it is made: holes in
# the volume would be read without the storage being asked.
point=/mnt/test

# What is loaded already is refused; what cannot be loaded, the mount will tell.
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
	# Written out now: ext4 would otherwise initialise its tables while we measure.
	ext4) mkfs.ext4 -q -F -E nodiscard,lazy_itable_init=0,lazy_journal_init=0 "$2" ;;
	xfs) mkfs.xfs -q -f -K "$2" ;;
	btrfs) mkfs.btrfs -q -f -K "$2" ;;
	*)
		echo "no such filesystem: $3" >&2
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
	echo "what to do? make, mount or unmount" >&2
	exit 1
	;;
esac

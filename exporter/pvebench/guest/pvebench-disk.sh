#!/bin/busybox sh
# pvebench-disk SERIAL: print the guest's view of the disk with that serial number.
wanted=$1
for block in /sys/block/*; do
	serial=
	# Of virtio, NVMe and SCSI. Page 0x80 of SCSI has four bytes of header, none of them a letter or
	# digit while the serial number is shorter than 48 characters, then the serial number.
	for file in "$block/serial" "$block/device/serial" "$block/device/vpd_pg80"; do
		[ -r "$file" ] || continue
		serial=$(tr -cd 'A-Za-z0-9_-' <"$file" 2>/dev/null)
		break
	done
	[ "$serial" = "$wanted" ] || continue
	driver=$block/device/driver
	[ -e "$driver" ] || driver=$block/device/device/driver
	driver=$(readlink "$driver")
	# QEMU chooses the aio mode at the first I/O.
	/usr/bin/dd if="/dev/${block##*/}" of=/dev/null bs=4096 count=1 iflag=direct 2>/dev/null
	echo "device=/dev/${block##*/}" \
		"size_bytes=$(($(cat "$block/size") * 512))" \
		"write_cache=$(tr ' ' - <"$block/queue/write_cache")" \
		"rotational=$(cat "$block/queue/rotational")" \
		"driver=${driver##*/}"
	exit 0
done
echo "no disk has the serial number $wanted" >&2
exit 1

#!/bin/busybox sh
# pvebench-disk SERIAL: print the guest's view of the disk with that serial number.
wanted=$1
for block in /sys/block/vd* /sys/block/sd*; do
	[ -e "$block" ] || continue
	if [ -r "$block/serial" ]; then
		serial=$(cat "$block/serial")
		driver=virtio_blk
	else
		# Page 0x80: four bytes of header, none of them a letter or digit while the serial number
		# is shorter than 48 characters, then the serial number.
		serial=$(tr -cd 'A-Za-z0-9_-' <"$block/device/vpd_pg80" 2>/dev/null)
		driver=sd
	fi
	[ "$serial" = "$wanted" ] || continue
	# QEMU chooses the aio mode at the first I/O.
	/usr/bin/dd if="/dev/${block##*/}" of=/dev/null bs=4096 count=1 iflag=direct 2>/dev/null
	echo "device=/dev/${block##*/}" \
		"size_bytes=$(($(cat "$block/size") * 512))" \
		"write_cache=$(tr ' ' - <"$block/queue/write_cache")" \
		"rotational=$(cat "$block/queue/rotational")" \
		"driver=$driver"
	exit 0
done
echo "no disk has the serial number $wanted" >&2
exit 1

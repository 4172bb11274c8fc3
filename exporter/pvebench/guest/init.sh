#!/bin/busybox sh
# First process of the benchmark guest. Everything is in RAM; there is no network.
export PATH=/usr/bin:/usr/sbin:/bin:/sbin
busybox mount -t proc proc /proc
busybox mount -t sysfs sys /sys
busybox mount -t devtmpfs dev /dev
busybox mount -t tmpfs tmpfs /run
busybox mount -t tmpfs tmpfs /tmp
mkdir -p /run/pvebench /mnt/test

# The list is in dependency order. Modules without matching hardware stay idle.
while read -r module; do
	insmod "$module" 2>/dev/null || echo "init: $module not loaded"
done </lib/modules/load.list

find_agent_port() {
	for name in /sys/class/virtio-ports/*/name; do
		if [ "$(cat "$name" 2>/dev/null)" = org.qemu.guest_agent.0 ]; then
			port=${name%/name}
			echo "/dev/${port##*/}"
			return
		fi
	done
}

while :; do
	port=$(find_agent_port)
	if [ -n "$port" ]; then
		qemu-ga --method=virtio-serial --path="$port" --statedir=/run
		echo "init: the agent ended with status $?"
	fi
	sleep 0.2
done

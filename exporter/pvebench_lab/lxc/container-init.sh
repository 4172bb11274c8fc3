#!/bin/busybox sh
# First process of a container with the files of the guest image, on a node of Proxmox VE. It keeps
# the container running and reaps orphaned processes. Jobs and their output are in RAM, as in a VM,
# not on the measured storage.
export PATH=/usr/bin:/usr/sbin:/bin:/sbin
mount -t tmpfs -o nosuid,nodev tmpfs /run
mount -t tmpfs -o nosuid,nodev tmpfs /tmp
while :; do
	sleep 3600
done

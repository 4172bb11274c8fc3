#!/bin/busybox sh
# First process of a container that has the guest's files, on a node of Proxmox VE. It keeps the
# container there, and buries what programs leave behind. Jobs and their output are in RAM, as in a
# VM: not on the storage that is measured.
export PATH=/usr/bin:/usr/sbin:/bin:/sbin
mount -t tmpfs -o nosuid,nodev tmpfs /run
mount -t tmpfs -o nosuid,nodev tmpfs /tmp
while :; do
	sleep 3600
done

"""More kinds of storages: loop devices, NBD, NFS, Ceph RBD, LVM-thin and ZFS."""

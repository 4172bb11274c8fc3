"""Which writes of a guest survive a killed QEMU and a loss of power."""

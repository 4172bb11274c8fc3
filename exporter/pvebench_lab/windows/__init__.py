"""Windows guests: an image of the user's, through QEMU's agent and PowerShell."""

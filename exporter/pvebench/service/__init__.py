"""An instance: assembly from settings, workers, housekeeping, systemd."""

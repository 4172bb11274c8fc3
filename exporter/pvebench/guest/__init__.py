"""Benchmark guest: content, build and verification of its image."""

from pvebench.guest.archives import container_archive, unpack_archive
from pvebench.guest.build import REQUIRED_TOOLS, build_image, needs_build
from pvebench.guest.image import GuestImage, default_directory, load_image
from pvebench.guest.recipe import FILESYSTEM_TOOL, KERNEL_ARGUMENTS, MODULE_PLACE, MOUNT_POINT

__all__ = [
    "FILESYSTEM_TOOL",
    "KERNEL_ARGUMENTS",
    "MODULE_PLACE",
    "MOUNT_POINT",
    "REQUIRED_TOOLS",
    "GuestImage",
    "build_image",
    "container_archive",
    "default_directory",
    "load_image",
    "needs_build",
    "unpack_archive",
]

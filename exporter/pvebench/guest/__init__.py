"""The benchmark guest: what is in it, how its image is built, how it is verified."""

from pvebench.guest.archives import unpack_archive
from pvebench.guest.build import REQUIRED_TOOLS, build_image
from pvebench.guest.image import GuestImage, default_directory, load_image
from pvebench.guest.recipe import FILESYSTEM_TOOL, KERNEL_ARGUMENTS, MOUNT_POINT

__all__ = [
    "FILESYSTEM_TOOL",
    "KERNEL_ARGUMENTS",
    "MOUNT_POINT",
    "REQUIRED_TOOLS",
    "GuestImage",
    "build_image",
    "default_directory",
    "load_image",
    "unpack_archive",
]

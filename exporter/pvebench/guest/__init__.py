"""The benchmark guest: what is in it, how its image is built, how it is verified."""

from pvebench.guest.build import REQUIRED_TOOLS, build_image
from pvebench.guest.image import GuestImage, default_directory, load_image
from pvebench.guest.recipe import KERNEL_ARGUMENTS

__all__ = [
    "KERNEL_ARGUMENTS",
    "REQUIRED_TOOLS",
    "GuestImage",
    "build_image",
    "default_directory",
    "load_image",
]

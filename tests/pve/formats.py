"""The forms of names and numbers that Proxmox checks in code: no table of its schema tells them.

Read in the public sources of pve-common (JSONSchema.pm; what an IPv4 address is in ParseUtils.pm),
pve-access-control (AccessControl.pm, Auth/Plugin.pm), qemu-server and, for pve-lxc-mp-string,
pve-container (PVE/LXC/Config.pm); what is not listed no test may send: nobody could say whether
the real one takes it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection

_REALM = r"[A-Za-z][A-Za-z0-9._-]+"
_USER = rf"[^\s:/]+@{_REALM}"
_STORAGE = r"[A-Za-z][A-Za-z0-9._-]*[A-Za-z0-9]"
_LABEL = r"[a-zA-Z0-9]([a-zA-Z0-9-]*[a-zA-Z0-9])?"
_VOLUME = rf"{_STORAGE}:.+"
_BOOTABLE = r"((ide[0-3]|sata[0-5]|scsi([12]?\d|30)|virtio(\d|1[0-5])|efidisk0|tpmstate0)"
_BOOTABLE += r"|(net|usb|hostpci)\d+|parallel\d)"

_OCTET = r"(25[0-5]|(2[0-4]|1\d|[1-9])?\d)"
_IPV4 = rf"{_OCTET}(\.{_OCTET}){{3}}"

PATTERNS: dict[str, tuple[str, str]] = {
    "disk-size": (r"\d+(\.\d+)?([KMGT](iB)?)?", "value does not look like a valid disk size"),
    "dns-name": (rf"{_LABEL}(\.{_LABEL})*", "value does not look like a valid DNS name"),
    "ipv4": (_IPV4, "value does not look like a valid IPv4 address"),
    "mac-addr": (
        r"[0-9a-fA-F][02468aceACE](:[0-9a-fA-F]{2}){5}",
        "value does not look like a valid unicast MAC address",
    ),
    "pve-bridge-id": (r"[-_.\w]+", "invalid bridge ID"),
    "pve-configid": (r"[A-Za-z][A-Za-z0-9_-]+", "invalid configuration ID"),
    "pve-groupid": (r"[A-Za-z0-9._-]+", "group name contains invalid characters"),
    "pve-hotplug-features": (
        r"[01]|((network|disk|cpu|memory|usb|cloudinit)([,; ]+|\Z))+",
        "unable to parse hotplug option",
    ),
    "pve-ipv4-config": (
        rf"dhcp|manual|{_IPV4}/0*([89]|[12]\d|3[0-2])",
        "value does not look like a valid ipv4 network configuration",
    ),
    "pve-lxc-mp-string": (
        r"(?!\.\./)(?!.*/\.\.?(/|\Z)).*",
        "{value} contains illegal character sequences",
    ),
    "pve-node": (_LABEL, "value does not look like a valid node name"),
    "pve-poolid": (
        r"[A-Za-z0-9._-]+(/[A-Za-z0-9._-]+){0,2}",
        "pool name contains invalid characters",
    ),
    "pve-qm-bootdev": (_BOOTABLE, "invalid boot device"),
    "pve-qm-bootdisk": (_BOOTABLE, "invalid boot disk"),
    "pve-roleid": (r"[A-Za-z0-9._-]+", "role name contains invalid characters"),
    "pve-storage-content": (
        r"images|rootdir|vztmpl|iso|backup|snippets|import|none",
        "invalid content type",
    ),
    "pve-storage-id": (_STORAGE, "storage ID contains illegal characters"),
    "pve-tag": (r"[A-Za-z0-9_][A-Za-z0-9_+.-]*", "invalid characters in tag"),
    "pve-task-status-type": (r"ok|error|warning|unknown", "unknown status type"),
    "pve-tokenid": (rf"{_USER}!{_REALM}", "value does not look like a valid token ID"),
    "pve-userid": (rf"(?=.{{3,64}}\Z){_USER}", "value does not look like a valid user name"),
    "pve-vmid": (r"[1-9][0-9]{2,8}", "value does not look like a valid VM ID"),
    "pve-volume-id": (_VOLUME, "unable to parse volume ID"),
    "pve-volume-id-or-absolute-path": (rf"/.+|{_VOLUME}", "unable to parse volume ID"),
    "pve-volume-id-or-qm-path": (rf"none|cdrom|/.+|{_VOLUME}", "unable to parse volume ID"),
    "urlencoded": (r"[-%a-zA-Z0-9_.!~*'()]*", "invalid urlencoded string"),
}
"""Format -> (what the whole of a value matches, what is said of one that does not: {value})."""


class NoWitness(AssertionError):
    """A value of a form that nobody here has read about: the test API cannot answer for it."""


def complaint(name: str, value: str, privileges: Collection[str]) -> str:
    """Return what Proxmox says of a value of a named format, empty if it takes it.

    Args:
        name: may end in `-list`, whose items are parted by commas, semicolons or blanks, or
            in `-opt`, which may be empty.
        privileges: those that this version knows.
    """
    if name.endswith("-list"):
        items = re.split(r"[,;\s]+", value.strip(" ,;"))
        found = (_single(name.removesuffix("-list"), item, privileges) for item in items if item)
        return next(filter(None, found), "")
    if name.endswith("-opt") and not value:
        return ""
    return _single(name.removesuffix("-opt"), value, privileges)


def _single(name: str, value: str, privileges: Collection[str]) -> str:
    if name == "pve-priv":
        return "" if value in privileges else f"invalid privilege '{value}'"
    if name not in PATTERNS:
        raise NoWitness(f"no test tells what Proxmox takes as {name}: {value!r}")
    pattern, text = PATTERNS[name]
    return "" if re.fullmatch(pattern, value) else text.format(value=value)


def cpu_type(kind: str) -> str:
    """Return the complaint about a `cputype`: those named after processors begin with a capital."""
    built_in = (
        r"host|max|x86-64-v[2-4](-AES)?|kvm(32|64)|qemu(32|64)|custom-.+|[A-Z][\w-]*|486|athlon"
        r"|phenom|core(2)?duo|pentium[23]?"
    )
    if re.fullmatch(built_in, kind):
        return ""
    return f"Built-in cputype '{kind}' is not defined (missing 'custom-' prefix?)"


VALIDATORS: dict[str, Callable[[dict[str, str]], str]] = {
    "pve-vm-cpu-conf": lambda found: cpu_type(found["cputype"]) if "cputype" in found else ""
}
"""Format of a list of properties -> what is checked of it once each property was."""

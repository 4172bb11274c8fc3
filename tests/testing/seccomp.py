"""Runs a program under a seccomp profile as Docker would: `python seccomp.py PROFILE COMMAND…`.

By libseccomp, which runc uses too, through its C interface (seccomp_rule_add(3)).
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from pathlib import Path
from typing import Any

ALLOW = 0x7FFF0000
ERRNO = 0x00050000
MASKED_EQ = 7
ARCHITECTURES = ("SCMP_ARCH_X86_64", "SCMP_ARCH_AARCH64")


class Comparison(ctypes.Structure):
    _fields_ = (
        ("arg", ctypes.c_uint),
        ("op", ctypes.c_int),
        ("mask", ctypes.c_uint64),
        ("value", ctypes.c_uint64),
    )


def library() -> ctypes.CDLL:
    lib = ctypes.CDLL("libseccomp.so.2")
    lib.seccomp_init.restype = ctypes.c_void_p
    lib.seccomp_init.argtypes = [ctypes.c_uint32]
    lib.seccomp_load.argtypes = [ctypes.c_void_p]
    lib.seccomp_rule_add_array.argtypes = [
        ctypes.c_void_p,
        ctypes.c_uint32,
        ctypes.c_int,
        ctypes.c_uint,
        ctypes.POINTER(Comparison),
    ]
    return lib


def number_of(name: str) -> int:
    """Return a system call's number on this machine."""
    found: int = library().seccomp_syscall_resolve_name(name.encode())
    return found


def confine(profile: dict[str, Any]) -> None:
    """Put this process under the profile, for good."""
    assert profile["defaultAction"] == "SCMP_ACT_ALLOW"
    assert tuple(profile["architectures"]) == ARCHITECTURES
    lib = library()
    context = lib.seccomp_init(ALLOW)
    for entry in profile["syscalls"]:
        assert entry["action"] == "SCMP_ACT_ERRNO"
        given = entry.get("args", [])
        assert all(one["op"] == "SCMP_CMP_MASKED_EQ" for one in given)
        compared = (Comparison * len(given))(
            *((one["index"], MASKED_EQ, one["value"], one["valueTwo"]) for one in given)
        )
        for name in entry["names"]:
            action = ERRNO | entry.get("errnoRet", 1)
            added = lib.seccomp_rule_add_array(
                context, action, number_of(name), len(given), compared
            )
            assert added == 0, (name, added)
    assert lib.seccomp_load(context) == 0


if __name__ == "__main__":
    confine(json.loads(Path(sys.argv[1]).read_text("utf-8")))
    os.execvp(sys.argv[2], sys.argv[2:])  # a list, no shell

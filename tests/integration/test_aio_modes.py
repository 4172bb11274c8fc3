"""Real QEMU: which aio mode it uses, also where the kernel refuses one, as in a container."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path

import pytest

from integration.conftest import Lab, scenario
from pvebench.errors import SwitchFailed
from pvebench.model.disk import Aio
from pvebench.runner.measure import mismatch
from testing.packs import ROOT

REFUSED = {Aio.IO_URING: "io_uring_setup", Aio.NATIVE: "io_setup"}


@pytest.fixture
def lab(own_lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lab:
    """A lab whose QEMU runs under the container's profile, with more refused calls."""
    profile = json.loads((ROOT / "seccomp.json").read_text("utf-8"))
    profile["syscalls"].append({"names": [*REFUSED.values()], "action": "SCMP_ACT_ERRNO"})
    (tmp_path / "profile.json").write_text(json.dumps(profile), "utf-8")
    program = shutil.which("qemu-system-x86_64")
    helper = f"{sys.executable} {ROOT}/tests/testing/seccomp.py {tmp_path}/profile.json"
    (tmp_path / "bin").mkdir()
    wrapper = tmp_path / "bin/qemu-system-x86_64"
    wrapper.write_text(f'#!/bin/sh\nexec {helper} {program} "$@"\n', "utf-8")
    wrapper.chmod(0o755)
    monkeypatch.setenv("PATH", str(wrapper.parent), prepend=":")
    return own_lab


def test_a_refused_aio_mode_is_never_taken_for_that_mode(lab: Lab) -> None:
    """QEMU 7.2 rejects io_uring and native; QEMU 10 uses threads, and only prints a message."""
    for mode in (*REFUSED, Aio.THREADS):
        requested = scenario(aio=mode)
        found = f"aio: requested {mode}, found threads" if mode in REFUSED else ""
        try:
            attachment = lab.plug(requested)[1]
        except SwitchFailed as error:
            assert mode in REFUSED
            assert re.search("io_uring ring|AIO context", str(error))  # noqa: PT017 # also right
        else:
            assert mismatch(requested, attachment) == found

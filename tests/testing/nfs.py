"""A real NFS server in user space (Debian's nfs-ganesha), for QEMU's own NFS client."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path

import pytest


@contextlib.contextmanager
def nfs_server(directory: Path) -> Iterator[Path]:
    """A real NFS server in user space, and the port mapper that libnfs asks for its ports."""
    if os.geteuid() != 0 or not shutil.which("ganesha.nfsd"):
        pytest.skip("an NFS server in user space needs root and nfs-ganesha-vfs")
    export = directory / "export"
    export.mkdir()
    plugins = Path(f"/usr/lib/{sysconfig.get_config_var('MULTIARCH')}/ganesha")
    configuration = directory / "ganesha.conf"
    configuration.write_text(
        "NFS_CORE_PARAM { Bind_addr = 127.0.0.1; Protocols = 3; Enable_NLM = false;"
        # Without CAP_SYS_RESOURCE, as in a container; it serves no local mount.
        " allow_set_io_flusher_fail = true;"
        f" Enable_RQUOTA = false; mount_path_pseudo = false; Plugins_Dir = {plugins}; }}\n"
        f"EXPORT {{ Export_Id = 1; Path = {export}; Pseudo = /e; Protocols = 3;"
        " Access_Type = RW; Squash = No_root_squash; FSAL { Name = VFS; } }\n"
    )
    with contextlib.ExitStack() as stack:
        if subprocess.run(["rpcinfo", "-p"], capture_output=True, check=False).returncode:
            Path("/run/rpcbind").mkdir(exist_ok=True)
            stack.enter_context(_running(["rpcbind", "-f"], ["rpcinfo", "-p"]))
        log, pid = str(directory / "ganesha.log"), str(directory / "ganesha.pid")
        command = ["ganesha.nfsd", "-F", "-L", log, "-p", pid, "-f", str(configuration)]
        look = ["rpcinfo", "-T", "tcp", "127.0.0.1", "mountd", "3"]
        stack.enter_context(_running(command, look))
        yield export


@contextlib.contextmanager
def _running(command: list[str], look: list[str]) -> Iterator[None]:
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        while subprocess.run(look, capture_output=True, check=False).returncode:
            assert server.poll() is None, command[0]
            time.sleep(0.1)
        try:
            yield
        finally:
            server.terminate()

"""`make deb-test`: the packages installed, upgraded, removed and purged, in booted Debians.

Each release is debootstrapped from Debian's packages and booted with systemd-nspawn, in a network
of its own; `inside.sh` is what happens in it. Exit codes: 0 all checks hold, 1 one does not, 3 this
machine lacks something.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).resolve().parent
ROOT: Final = HERE.parents[1]
SUITES: Final = {12: "bookworm", 13: "trixie"}
PROGRAMS: Final = {"mmdebstrap": "mmdebstrap", "systemd-nspawn": "systemd-container"}
PACKAGES: Final = (
    "systemd,systemd-sysv,dbus,python3,ca-certificates,man-db,bash-completion,curl,procps,"
    "xorriso,util-linux-extra"
)
"""What a container has before: all that the package depends on; it boots without a network."""
OLD_DATABASES: Final = ROOT / "tests/golden/store"
"""SQL dumps, one per schema."""
MINUTES: Final = 30

UNIT: Final = """\
[Unit]
Description=The tests of the package
After=multi-user.target
[Service]
Type=oneshot
StandardOutput=file:/test/out
StandardError=file:/test/out
ExecStart=/bin/bash /test/inside.sh
ExecStopPost=/bin/sh -c 'echo $SERVICE_RESULT >/test/result'
ExecStopPost=systemctl --no-block poweroff
"""

BOOT: Final = """\
mount --make-rprivate /
mount -t tmpfs tmpfs /run
mkdir /run/work
mount -t overlay overlay -o "lowerdir=$1,upperdir=$2/upper,workdir=$2/work" "$2/root"
exec systemd-nspawn --quiet --register=no --keep-unit --private-network --console=pipe \
    --capability=CAP_BPF --system-call-filter=bpf \
    --bind="$3:/test" --directory="$2/root" --boot systemd.unit=multi-user.target
"""
"""/run may be no tmpfs where nothing was booted, and nspawn removes what it finds below it. By BPF
the systemd inside keeps a unit from devices."""


def main() -> int:
    """Run the tests of each release; return the exit code."""
    parser = argparse.ArgumentParser(prog="make deb-test")
    parser.add_argument("--packages", type=Path, default=ROOT / "dist", help="where the debs are")
    parser.add_argument("--release", type=int, choices=SUITES, action="append")
    parser.add_argument("--roots", type=Path, help="keep the bootstrapped systems here")
    told = parser.parse_args()
    lacking = [package for program, package in PROGRAMS.items() if not shutil.which(program)]
    if os.geteuid() or lacking:
        print(
            f"pvebench: this needs root{''.join(f', {one}' for one in lacking)}; nothing was tested"
        )
        return 3
    good = True
    for release in told.release or SUITES:
        print(f"== Debian {release}", flush=True)
        with tempfile.TemporaryDirectory(prefix="pvebench-deb-test-", dir="/var/tmp") as work:
            good &= test(release, told.packages, told.roots or Path(work), Path(work))
    return 0 if good else 1


def test(release: int, packages: Path, roots: Path, work: Path) -> bool:
    """Return whether all checks hold in a release's container."""
    (found,) = packages.glob(f"pvebench_*_deb{release}_amd64.deb")
    root = bootstrapped(roots / SUITES[release], SUITES[release])
    share = work / "test"
    share.mkdir()
    shutil.copyfile(found, share / "newer.deb")
    older(found, share / "older.deb")
    repositories(share, release)
    shutil.copyfile(HERE / "inside.sh", share / "inside.sh")
    with closing(sqlite3.connect(share / "old.db")) as connection:
        connection.executescript(min(OLD_DATABASES.glob("*.sql")).read_text("utf-8"))
        # Numbers are invented in the container, which is never mixed with what was measured.
        connection.execute("UPDATE facts SET value = 'simulated' WHERE name = 'kind'")
        connection.commit()
    boot(root, share, work)
    print((share / "out").read_text("utf-8", "replace"), flush=True)
    return (share / "result").read_text("utf-8").strip() == "success"


def bootstrapped(root: Path, suite: str) -> Path:
    """Return a directory with a Debian in it; made if it is not there."""
    if not root.exists():
        mirror = ["--variant=minbase", f"--include={PACKAGES}", suite, str(root)]
        subprocess.run(["mmdebstrap", "--quiet", *mirror], check=True)
    return root


def older(package: Path, made: Path) -> None:
    """Make the same package under an earlier version's name."""
    with tempfile.TemporaryDirectory() as work:
        subprocess.run(["dpkg-deb", "--raw-extract", str(package), f"{work}/tree"], check=True)
        control = Path(work, "tree/DEBIAN/control")
        lines = control.read_text("utf-8").splitlines()
        lines = ["Version: 0.0.1~test" if line.startswith("Version:") else line for line in lines]
        control.write_text("\n".join(lines) + "\n", "utf-8")
        build = [
            "dpkg-deb",
            "-Zxz",
            "-z0",
            "--root-owner-group",
            "--build",
            f"{work}/tree",
            str(made),
        ]
        subprocess.run(build, check=True, stdout=subprocess.DEVNULL)


def repositories(share: Path, release: int) -> None:
    """Make the published repository with the older package, and its successor with both."""
    home = share / "gnupg"
    home.mkdir(mode=0o700)
    gpg = ["gpg", "--homedir", str(home), "--batch", "--quiet", "--passphrase", ""]
    make = [*gpg, "--quick-generate-key", "Test <t@example.org>", "ed25519"]
    subprocess.run(make, check=True)
    key = share / "key.asc"
    exported = subprocess.run([*gpg, "--export-secret-keys"], check=True, stdout=subprocess.PIPE)
    key.write_bytes(exported.stdout)
    publish = [sys.executable, str(ROOT / "scripts/publish.py"), "--no-image", "--key", str(key)]
    for name, earlier in (("older", ""), ("newer", "older")):
        dist = share / name
        dist.mkdir()
        shutil.copyfile(share / f"{name}.deb", dist / f"pvebench_{name}_deb{release}_amd64.deb")
        (dist / "SHA256SUMS").touch()
        kept = ["--earlier", str(share / earlier / "publish/apt")] if earlier else []
        url = ["--url", "file:/test/repository/publish/apt"]
        subprocess.run([*publish, *url, *kept, str(dist)], check=True, stdout=subprocess.DEVNULL)


def boot(root: Path, share: Path, work: Path) -> None:
    """Boot a container over `root`, which stays as it is, until its tests have ended."""
    for name in ("upper/etc/systemd/system/multi-user.target.wants", "work", "root"):
        (work / name).mkdir(parents=True)
    units = work / "upper/etc/systemd/system"
    (units / "pvebench-test.service").write_text(UNIT, "utf-8")
    (units / "multi-user.target.wants/pvebench-test.service").symlink_to("../pvebench-test.service")
    command = ["unshare", "--mount", "bash", "-euc", BOOT, "boot", *map(str, (root, work, share))]
    # Where systemd is not what booted, cgroups may be of the first version, which 13 refuses.
    environment = os.environ | {"SYSTEMD_NSPAWN_UNIFIED_HIERARCHY": "1"}
    try:
        subprocess.run(
            command, env=environment, stdin=subprocess.DEVNULL, timeout=60 * MINUTES, check=True
        )
    finally:
        (share / "result").touch()
        (share / "out").touch()


if __name__ == "__main__":
    sys.exit(main())

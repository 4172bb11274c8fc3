"""Write the page of a release: its files, how to begin with each, checksums and changes.

Usage: python scripts/release_page.py DIRECTORY [URL]      writes DIRECTORY/RELEASE.md
URL: of the apt repository, if the release is signed
"""

from __future__ import annotations

import re
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
PAGE: Final = "RELEASE.md"
SUMS: Final = "SHA256SUMS"
FILES: Final = {
    "proxmox-lxc.sh": "Proxmox VE node: creates a container with the package of Debian 13",
    "pvebench_*_deb12_amd64.deb": "Debian 12; on a Proxmox VE node only with proxmox-lxc.sh",
    "pvebench_*_deb13_amd64.deb": "Debian 13; on a Proxmox VE node only with proxmox-lxc.sh",
    "pvebench-hub_*_deb12_amd64.deb": "hub of a fleet, on Debian 12; needs pvebench_*_deb12",
    "pvebench-hub_*_deb13_amd64.deb": "hub of a fleet, on Debian 13; needs pvebench_*_deb13",
    "pvebench-*-py3-none-any.whl": "other Linux with Python 3.11 or later",
    "pvebench-*-image.tar.gz": "context of the container image",
    "pvebench-*.tar.gz": "source, with the Compose stack",
}
"""Pattern of a file name -> its use; the first match counts."""
BEGIN: Final = """\
On a Proxmox VE node, as root, with these two files in the directory:

    bash proxmox-lxc.sh --deb pvebench_*_deb13_amd64.deb

On Debian 12, as root (Debian 13: `_deb13`). Never on a Proxmox VE node, where Debian's QEMU
conflicts with `pve-qemu-kvm`:

    apt-get install --no-install-recommends ./pvebench_*_deb12_amd64.deb qemu-system-x86 qemu-utils
    systemctl enable --now pvebench

The hub of a fleet; `docs/fleet.md` in the source describes the next steps:

    apt-get install postgresql ./pvebench_*_deb12_amd64.deb ./pvebench-hub_*_deb12_amd64.deb

On another Linux: `pipx install ./pvebench-*.whl`, then `pvebench run`.

The container image:

    docker build -t pvebench:local -f exporter/Dockerfile - < pvebench-*-image.tar.gz

In the source, `docs/install.md` describes each way, and `docs/uninstall.md` how to remove it."""


SIGNED: Final = """\
`gpg --import pvebench.asc && gpg --verify SHA256SUMS.asc` verifies the checksums. The same key
signs the apt repository. For Debian 12, use `bookworm.sources`. Never on a Proxmox VE node:

    apt-get update && apt-get install curl ca-certificates
    curl -fo /etc/apt/sources.list.d/pvebench.sources {url}/trixie.sources
    apt-get update && apt-get install --no-install-recommends pvebench

"""


def main(directory: Path, url: str = "") -> None:
    """Write the page; exit with a message if a file is missing or has no use."""
    names = sorted(path.name for path in directory.iterdir() if path.name not in {PAGE, SUMS})
    lacking = [pattern for pattern in FILES if not any(use_of(name) == pattern for name in names)]
    unknown = [name for name in names if not use_of(name)]
    if lacking or unknown:
        sys.exit(f"pvebench: no release: missing {lacking}, unknown {unknown}")
    order = sorted(names, key=lambda name: list(FILES).index(use_of(name)))
    version = next(name for name in names if name.endswith(".whl")).split("-")[1]
    sums = (directory / SUMS).read_text("utf-8")
    text = (
        f"# pvebench {version}\n\nBuilt from commit {commit()}. "
        f"`sha256sum --check --ignore-missing {SUMS}` checks the files; two builds of a commit are "
        f"equal.\n\n{SIGNED.format(url=url.rstrip('/')) if url else ''}"
        "| File | For |\n|---|---|\n"
        + "".join(f"| `{name}` | {FILES[use_of(name)]} |\n" for name in order)
        + f"\n## Begin\n\n{BEGIN}\n\n## Checksums\n\n```\n{sums}```\n"
        f"\n## Changes\n\n{changes((ROOT / 'CHANGELOG.md').read_text('utf-8'), version)}\n"
    )
    (directory / PAGE).write_text(text, "utf-8")
    print(f"pvebench: {directory / PAGE} describes {len(names)} files")


def use_of(name: str) -> str:
    """Return the pattern that a file name matches; empty if there is none."""
    return next((pattern for pattern in FILES if fnmatch(name, pattern)), "")


def commit() -> str:
    """Return the checked out commit and its date."""
    command = ["git", "log", "-1", "--format=%H (%cs)"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout[:-1]


def changes(changelog: str, version: str) -> str:
    """Return the section of a version, without its heading and its links into the source."""
    found = re.search(
        rf"^## {re.escape(version)}\b.*\n((?:(?!## ).*\n?)*)", changelog, re.MULTILINE
    )
    if found is None:
        sys.exit(f"pvebench: no release: CHANGELOG.md has no section {version}")
    return re.sub(r"\[([^]]+)\]\((?!https?:)[^)]+\)", r"\1", found[1].strip())


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])

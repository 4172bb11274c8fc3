"""Versions of packages: options, and output of apt, dpkg, pveversion and the API, in one reader.

All forms become lines; each line is in a known form, is known to have no version, or is unread.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from pvebench.errors import ConfigError
from pvebench.model.environment import Version

FACTS: Final = {
    "pve-qemu-kvm": "qemu_package",
    "qemu-server": "qemu_server",
    "libpve-storage-perl": "libpve_storage",
    "pve-manager": "pve",
    "zfsutils-linux": "zfs",
    "ceph": "ceph",
    "ceph-common": "ceph",
    "ceph-osd": "ceph",
    "kernel": "kernel",
    "drbd-dkms": "drbd",
    "proxmox-backup-server": "pbs",
    "storage-server": "storage_server",
    "virtio-win": "virtio_win",
    "windows": "windows_build",
}
"""Package -> fact of an environment.

Not packages: `kernel` is the running kernel, `storage-server` the version of a NAS or SAN,
`windows` the build of Windows guests.
"""
NAMES: Final = {fact: name for name, fact in reversed(FACTS.items())}
"""Fact -> its package."""

_V: Final = r"\d[A-Za-z0-9.+~:-]*"
_NAME: Final = r"(?P<name>[a-z0-9][a-z0-9.+_-]*)(?::[a-z0-9]+)?"
_NOW: Final = rf"(?P<now>{_V})"
"""Version of an installed package, or of an option."""
_OLD: Final = rf"(?P<old>{_V})"
_NEW: Final = rf"(?P<new>{_V})"
_TIME: Final = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d"
_FORMS: Final = tuple(
    re.compile(pattern)
    for pattern in (
        rf"{_NAME}={_NOW}\Z",
        rf"{_NAME}:\s+{_NOW}(\s+\(.*\))?\Z",  # pveversion -v
        rf"{_NAME}/{_NOW}(/\S+)?(\s+\(.*\))?\Z",  # pveversion
        # apt list, in any language: [installed,upgradable to: NEW], [upgradable from: OLD], […]
        rf"{_NAME}/\D\S*\s+{_OLD}\s+\S+\s+\[[^],]*,[^]:]*: {_NEW}\]\Z",
        rf"{_NAME}/\D\S*\s+{_NEW}\s+\S+\s+\[[^],:]*: {_OLD}\]\Z",
        rf"{_NAME}/\D\S*\s+{_NOW}\s+\S+(\s+\[[^]:]*\])?\Z",
        rf"Inst {_NAME} (\[{_OLD}?\] )?\({_NEW} ",  # apt-get --simulate
        rf"{_NAME} \(({_OLD} => )?{_NEW}\)\Z",  # apt --verbose-versions
        rf"{_NAME} \({_OLD}, {_NEW}\)\Z",  # history.log of apt
        rf"{_NAME} \({_NEW}, automatic\)\Z",
        rf"Get:\d+ \S+ \S+ \S+ {_NAME} \S+ {_NEW} \[",  # apt
        rf"Unpacking {_NAME} \({_NEW}\)( over \({_OLD}\))?",  # term.log of apt
        rf"{_TIME} (upgrade|install) {_NAME} (<none>|{_OLD}) {_NEW}\Z",  # dpkg.log
        rf"[uihrp][iUFHWt]\s+{_NAME}\s+{_NOW}\s",  # dpkg --list
        rf"{_NAME}\s+{_OLD}\s+{_NEW}(\s+\D.*)?\Z",  # columns of a table
        rf"{_NAME}\s+{_NOW}\Z",  # dpkg-query --show
    )
)
_WITHOUT_VERSION: Final = re.compile(
    r"""(Conf|Remv|Purg|Setting\ up|Preparing\ to|Selecting|Processing)\s
    |(Reading|Building|Calculating|Listing)\b.*(\.\.\.|Done|%)
    |WARNING:\ apt\ does\ not|NOTE:\ This\ is|(Hit|Get|Ign):\d|Fetched\ |\d+\ upgraded
    |(Upgrading|Installing|Installing\ dependencies|Removing|Summary|Not\ Upgrading)\b.*:
    |(Start-Date|End-Date|Commandline|Requested-By|Remove|Purge|Error):
    |\d{4}-\d\d-\d\d\ \d\d:\d\d:\d\d\ (startup|status|configure|trigproc|remove|purge|conffile)\s
    |[uihrp][nc]\s|\|?/\ Name|Name\s+Version|Desired=|Status=|/?\ ?Err\?=|\+\+\+-
    |Version\ table:|[\d.+~:a-z-]+\ -?\d+\Z|-?\d+\ (https?:|/)
    """,
    re.VERBOSE,
)
_POLICY: Final = re.compile(r"^(\S+):\n +Installed: (\S+)\n +Candidate: (\S+)$", re.MULTILINE)
_LISTS: Final = re.compile(r"(Install|Upgrade|Downgrade|Reinstall): ")
_ITEM: Final = re.compile(r"(?<=\)), ")
_QUOTE: Final = re.compile(r"^(?:[\s>|*`'\"\u2022\u00a0]|-\s)+|[\s`'\"\u00a0]+$")
_COLOR: Final = re.compile(r"\x1b\[[0-9;]*m|\r|\ufeff")
_COMMA: Final = re.compile(r",(?=\s*[^\s,/()]+=)")
"""Between NAME=VERSION. apt lists the archives of a package with commas, too."""
_SERIES: Final = re.compile(r"(?:proxmox|pve)-kernel-(\d+\.\d+)(?:(\.\d+-\d+)-pve.*)?\Z")
_RUNNING: Final = re.compile(
    r"(?:running kernel: |\ALinux (?:version |(?!\d)\S+ )?|\A)(\d+\.\d+\.\d+-\d+)-pve\b"
)


@dataclass(frozen=True, slots=True)
class _Pair:
    """Old and new version of a package; an empty one is not stated."""

    name: str
    old: str
    new: str


def read_versions(text: str, *, option: str) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return fact -> version, and the lines in no known form.

    Of an update with both versions, `--from` takes the old one. The newest kernel of a list counts,
    unless the list names the running one.

    Raises ConfigError: there is no known package, or an unknown one in NAME=VERSION.
    """
    pairs: list[_Pair] = []
    unread: list[str] = []
    running = {}
    for line in _lines(text):
        if kernel := _RUNNING.search(line):
            running = {"kernel": kernel[1]}
        if (pair := _pair(line)) is not None:
            pairs.append(pair)
        elif kernel is None and not _WITHOUT_VERSION.match(line):
            unread.append(line)
    versions = _versions(pairs, before=option == "--from") | running
    unknown = [pair.name for pair in pairs if not _fact(pair)]
    single = "=" in text and "\n" not in text.strip()
    if not versions or (unknown and single):
        raise _unknown(text, unknown, option)
    return versions, tuple(unread)


def _versions(pairs: Sequence[_Pair], *, before: bool) -> dict[str, str]:
    """Return fact -> version: before all of a log's updates, or after them."""
    versions: dict[str, str] = {}
    for pair in reversed(pairs) if before else pairs:
        fact, version = _fact(pair), pair.old if before else pair.new
        if not fact or not version:
            continue
        version = version.removesuffix("-pve")
        if fact != "kernel" or Version(versions.get(fact, "0")) < Version(version):
            versions[fact] = version
    return versions


def _fact(pair: _Pair) -> str:
    return FACTS.get(pair.name, pair.name if pair.name in NAMES else "")


def _lines(text: str) -> Iterator[str]:
    """Yield the lines of a text or of the API's JSON, without the marks of a quotation."""
    with suppress(ValueError, RecursionError):
        if text.lstrip().startswith(("[", "{")):
            text = "\n".join(_json_lines(json.loads(text)))
    text = _COLOR.sub("", text)
    text = "\n".join(_QUOTE.sub("", line) if ">" in line[:3] else line for line in text.split("\n"))
    for whole in _POLICY.sub(r"Inst \1 [\2] (\3 )", text).split("\n"):
        line = _QUOTE.sub("", whole)
        listed = _LISTS.match(line)
        items = _ITEM.split(line[listed.end() :]) if listed else _COMMA.split(line)
        yield from (item.strip() for item in items if item.strip())


def _json_lines(data: Any) -> Iterator[str]:
    """Yield the packages of a response of the API as `apt-get --simulate` prints them."""
    if isinstance(data, Mapping) and "Package" in data:
        old, new = data.get("OldVersion", ""), data.get("Version") or data.get("OldVersion")
        if data.get("CurrentState") != "NotInstalled":
            yield f"Inst {data['Package']} [{old}] ({new} )"
        if kernel := data.get("RunningKernel"):
            yield f"running kernel: {kernel}"
    elif isinstance(data, Mapping | list):
        for part in data.values() if isinstance(data, Mapping) else data:
            yield from _json_lines(part)
    elif isinstance(data, str):
        yield data


def _pair(line: str) -> _Pair | None:
    match = next((match for form in _FORMS if (match := form.match(line))), None)
    if match is None:
        return None
    groups = match.groupdict("")
    name, now = groups["name"], groups.get("now", "")
    old, new = now or groups.get("old", ""), now or groups["new"]
    kernel = _SERIES.match(name)
    if kernel is None:
        return _Pair(name, old, new)
    series, build = kernel[1], kernel[2]
    if build:
        return _Pair("kernel", old and series + build, series + build)
    # Up to Proxmox VE 8.0, the package of a series had a version of its own.
    return _Pair("kernel" if new.startswith(f"{series}.") else name, old, new)


def _unknown(text: str, unknown: list[str], option: str) -> ConfigError:
    which = f"unknown package {unknown[0]!r}" if unknown else f"no version in {text[:60]!r}"
    expected = "write NAME=VERSION,… or a file with the output of pveversion -v or apt; known: "
    return ConfigError.of_options(f"{option}: {which}; {expected}{_KNOWN}")


_KNOWN: Final = ", ".join(FACTS)

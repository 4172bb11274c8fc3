"""A settings file for a test cluster, as an admin would write it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pve.server import RunningApi, fingerprint

STORAGES = {"local": "{type: dir}", "fast": "{type: lvmthin, id: thin}"}


def write_settings(
    directory: Path,
    api: RunningApi,
    *,
    packs: Sequence[Path],
    nodes: Sequence[str] = ("pve1",),
    storages: dict[str, str] | None = None,
    more: str = "",
    **proxmox: str,
) -> Path:
    """Write `pvebench.yaml` below `directory`; return its path.

    Args:
        storages: name -> YAML of one entry.
        more: further YAML of the top level.
        proxmox: further keys of the section and their YAML.
    """
    lines = [f"    {name}: {text}" for name, text in (storages or STORAGES).items()]
    section = {"node_exporter": '""', **proxmox}
    path = directory / "pvebench.yaml"
    path.write_text(
        f"""\
driver: proxmox
state: {directory / "state"}
packs: [{", ".join(str(pack) for pack in packs)}]
{more}
proxmox:
  host: 127.0.0.1
  port: {api.port}
  token_file: token
  tls: {{fingerprint: "{fingerprint(api.certificate)}"}}
  nodes: [{", ".join(nodes)}]
  pool: bench
  version: {api.cluster.major}
  storages:
"""
        + "\n".join([*lines, *(f"  {key}: {text}" for key, text in section.items()), ""]),
        "utf-8",
    )
    return path

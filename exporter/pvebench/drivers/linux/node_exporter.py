"""Host counters of another machine, from its node_exporter."""

from __future__ import annotations

import http.client
import re
import time
from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from prometheus_client.parser import text_string_to_metric_families

from pvebench.drivers.linux.procfs import of_page
from pvebench.errors import MachineError
from pvebench.http_responses import open_url, read_body
from pvebench.model.ports import HostSnapshot
from pvebench.model.units import MIB

_SECONDS: Final = 5.0
_MOST_BYTES: Final = 32 * MIB
"""Maximum size of a page; that of a large node with every collector has some MB."""
_IDLE: Final = frozenset({"idle", "iowait", "steal"})
_STACKED: Final = re.compile(
    r"dm-|md|zd|loop|sr|ram|zram|rbd|nbd|ublk|bcache|drbd|vdo|nvme\d+c\d+n"
)
"""Block devices on top of others, and paths below one, whose bytes would be counted twice."""
_PARTITION: Final = re.compile(r"(.*\d)p\d+|(.*\D)\d+")
"""A disk and its partition's number, by the kernel's names (`disk_name` in block/genhd.c)."""

_PRESSURES: Final = {
    "node_pressure_cpu_waiting_seconds_total": "cpu_some",
    "node_pressure_io_waiting_seconds_total": "io_some",
    "node_pressure_io_stalled_seconds_total": "io_full",
    "node_pressure_memory_waiting_seconds_total": "memory_some",
    "node_pressure_memory_stalled_seconds_total": "memory_full",
}

_FAMILIES: Final = (
    "node_cpu",
    "node_disk",
    "node_context",
    "node_pressure",
    "node_hwmon",
    "node_zfs_arc_size",
    "node_md_state",
    "node_md_blocks_synced",
)

Sample = tuple[str, dict[str, str], float]


class NodeExporterProbe:
    """`model.ports.HostProbe` for a node that runs node_exporter.

    It is read directly at both ends of the window, for which a scraped series has no values.

    Args:
        url: the page, such as `http://pve1:9100/metrics`.
    """

    def __init__(self, url: str) -> None:
        self._url = url

    def snapshot(self) -> HostSnapshot:
        """Return the current counters; if the page cannot be read, all are absent."""
        asked = time.monotonic()
        try:
            page = fetch(self._url)
            # The counters are of a moment in between; parsing takes longer than the request.
            at = (asked + time.monotonic()) / 2
            return replace(read_counters(page), monotonic=at)
        except MachineError:
            return HostSnapshot(monotonic=time.monotonic(), cpu_seconds={})


def fetch(url: str) -> str:
    """Return the page as text. Raises MachineError: it cannot be read within a few seconds."""
    try:
        with open_url(url, still=_SECONDS, seconds=_SECONDS) as answer:
            body = read_body(answer, most=_MOST_BYTES, seconds=_SECONDS)
            return body.decode("utf-8", "replace")
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise MachineError(
            f"node_exporter at {url} does not answer: {error}",
            next_step="run `apt install prometheus-node-exporter` on the node, or set its address "
            "as node_exporter in the settings (empty: none)",
        ) from error


def read_counters(page: str) -> HostSnapshot:
    """Return the counters on a page of node_exporter.

    Raises MachineError: the page is not in the format of metrics.
    """
    try:
        samples = [
            (sample.name, sample.labels, sample.value)
            for family in text_string_to_metric_families(page)
            if family.name.startswith(_FAMILIES)
            for sample in family.samples
        ]
    except ValueError as error:
        raise MachineError(
            f"invalid metrics of node_exporter: {error}",
            cause="another program listens at that address",
            next_step="open the address in a browser; correct `node_exporter:` in the settings",
        ) from error
    busy = [
        (labels, value)
        for name, labels, value in samples
        if name == "node_cpu_seconds_total" and labels.get("mode") not in _IDLE
    ]
    switches = [value for name, _, value in samples if name == "node_context_switches_total"]
    return HostSnapshot(
        monotonic=time.monotonic(),
        cpu_seconds=_cpu_seconds(samples),
        bytes=_device_bytes(samples),
        cpus=len({labels["cpu"] for labels, _ in busy if "cpu" in labels}),
        context_switches=int(sum(switches)),
        pressure_seconds={
            _PRESSURES[name]: value for name, _, value in samples if name in _PRESSURES
        },
        conditions=of_page(samples),
    )


def _cpu_seconds(samples: Iterable[Sample]) -> dict[str, float]:
    """Return the busy seconds of all CPUs together, and those of each mode."""
    modes: dict[str, float] = {}
    for name, labels, value in samples:
        if name == "node_cpu_seconds_total" and labels.get("mode", "idle") != "idle":
            modes[labels["mode"]] = modes.get(labels["mode"], 0.0) + value
    if not modes:
        return {}
    total = sum(value for mode, value in modes.items() if mode not in _IDLE)
    return {"total": total, **modes}


def _device_bytes(samples: Iterable[Sample]) -> dict[str, int]:
    names = {
        "node_disk_read_bytes_total": "device_read",
        "node_disk_written_bytes_total": "device_write",
    }
    counts = [
        (names[name], it.get("device", ""), value) for name, it, value in samples if name in names
    ]
    devices = {device for _, device, _ in counts}
    totals: dict[str, int] = {}
    for name, device, value in counts:
        part = _PARTITION.fullmatch(device)
        if not _STACKED.match(device) and not (part and {*part.groups()} & devices):
            totals[name] = totals.get(name, 0) + int(value)
    return totals

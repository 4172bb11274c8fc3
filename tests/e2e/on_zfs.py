"""Guests on ZFS: rows of zfs-mdadm-2016 and pool-options, and zvol or file by cache, sync, block.

In the VM that plays the host a guest would be emulated twice. So only ZFS is there, and the block
layer of a QEMU (`qemu-storage-daemon`), which opens zvols and files as Proxmox's QEMU does: with
O_DIRECT for cache `none`, through the page cache for `writeback`. It exports them by NBD, and the
guest runs outside. A bare disk of the same VM, exported likewise, shows what emulation and network
cost: only ratios to it mean anything. The VM's own counters tell whether reads were warm.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, Final

from ruamel.yaml import YAML

from e2e.on_host_vm import made, run_in_vm
from e2e.pieces import Piece, measured, must_be_measured, say, value
from hostvm.machine import HOME, NBD_PORT, HostVm, python
from pvebench.drivers.storages.contract import MARK
from pvebench.model.run_metrics import WARM
from pvebench.model.units import MIB, parse_size
from pvebench.runner.plausibility import COLD_SHARE
from testing.packs import ROOT
from testing.published import OVER_NBD, SCALES, Row, small_rows

MEASURE: Final = {"ramp": "10s", "runtime": "60s", "scale": SCALES["zfs-mdadm-2016"]}
"""3 s after a ramp of 0.5 s: pvebench checks shares in windows from 3 s on."""
PACK_VOLUME: Final = "1100M"
"""Before the scale: more than the working set of zfs-mdadm-2016, which would be cut otherwise."""
VOLUME_BYTES: Final = 64 * MIB
"""What is exported: a multiple of each block size."""
PLAIN: Final = "plain"
"""The bare disk."""
CACHES: Final = {"none": "on", "writeback": "off"}
"""Cache mode -> whether the VM's block layer uses O_DIRECT (`cache.direct`)."""
SIZES: Final = ("volblocksize", "recordsize")
SERVER: Final = "/run/exports"


@dataclass(frozen=True, slots=True)
class Counters:
    """Of the VM at a time: bytes read from its disks, hits and misses of the ARC."""

    seconds: float
    disk_bytes: int
    hits: int
    misses: int


def read_pack(name: str) -> dict[str, Any]:
    content: dict[str, Any] = YAML(typ="safe").load((ROOT / f"scenarios/{name}.yaml").read_text())
    return content


def small_pack(name: str, storages: Sequence[str]) -> str:
    """Return a pack with all its workloads, small, on these storages in each mode of `CACHES`."""
    pack = read_pack(name)
    pack.pop("variants", None)
    pack.get("fixed", {}).pop("cache", None)
    pack["axes"] |= {"storage": [*storages], "cache": [*CACHES]}
    pack["volume"]["size"] = PACK_VOLUME
    return json.dumps(pack | {"host": False, "measure": MEASURE})


def name_of(options: Mapping[str, str]) -> str:
    return "-".join(["zfs", *(word for option in options.items() for word in option)])


def volumes() -> dict[str, dict[str, str]]:
    """Return name -> options: ZFS's of pool-options, and each block size with sync disabled."""
    variants = [each for each in read_pack("pool-options")["variants"] if each["storage"] == "zfs"]
    options = [{key: each[key] for key in each if key != "storage"} for each in variants]
    shapes: list[dict[str, str]] = [{}, *(each for each in options if {*SIZES} & {*each})]
    unsafe = [{**shape, "sync": "disabled"} for shape in shapes]
    return {name_of(each): each for each in [{}, *options, *unsafe]}


def create(vm: HostVm, requested: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    """Return name -> path of new zvols and files in the pool, whose options ZFS confirms."""
    sized = {
        name: {key: parse_size(text) if key in SIZES else text for key, text in options.items()}
        for name, options in requested.items()
    }
    words = python(f"{HOME}/tests/hostvm/zvols.py", "bench", str(VOLUME_BYTES))
    said = json.loads(vm.run(shlex.join(words), stdin=json.dumps(sized).encode()))
    for name, (_, effective) in said.items():
        assert (
            sized[name].items()
            <= {key: int(text) if key in SIZES else text for key, text in effective.items()}.items()
        ), (name, effective)
    return {name: path for name, (path, _) in said.items()}


@contextmanager
def exported(vm: HostVm, paths: Mapping[str, str], cache: str) -> Iterator[None]:
    """Have the VM's block layer export volumes, opened as for this cache mode."""
    address = f"addr.type=inet,addr.host=0.0.0.0,addr.port={NBD_PORT}"
    words = ["qemu-storage-daemon", "--daemonize", f"--pidfile={SERVER}.pid"]
    words += [f"--nbd-server={address}"]
    for number, (name, path) in enumerate(paths.items()):
        driver = "host_device" if path.startswith("/dev/") else "file"
        node = f"driver={driver},node-name=n{number},filename={path},discard=unmap"
        words += [f"--blockdev={node},cache.direct={CACHES[cache]}"]
        words += [
            f"--export=type=nbd,id=e{number},node-name=n{number},name={MARK}{name},writable=on"
        ]
    vm.run(f"{shlex.join(words)} >{SERVER}.log 2>&1")
    try:
        yield
    finally:
        vm.run(f"p=$(cat {SERVER}.pid); kill $p; while [ -e /proc/$p ]; do sleep 0.2; done")


@contextmanager
def watched(vm: HostVm) -> Iterator[list[Counters]]:
    """Yield counters of the VM, complete at the end."""
    seen: list[Counters] = []
    words = vm.command(["bash", f"{HOME}/tests/hostvm/storages.sh", "counters"])
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:

        def listen() -> None:
            lines = process.stdout or ()
            seen.extend(Counters(time.time(), *map(int, line.split())) for line in lines)

        thread = threading.Thread(target=listen)
        thread.start()
        try:
            yield seen
        finally:
            process.kill()
            thread.join()


def measure(vm: HostVm, pack: str, paths: dict[str, str], only: Sequence[str]) -> list[Any]:
    """Return the runs of a pack on volumes and on the bare disk, each with `far`: its counters."""
    paths = {**paths, PLAIN: vm.storage("make", PLAIN)}
    runs: list[Any] = []
    with watched(vm) as seen:
        for cache in CACHES:
            requested = [
                word for each in only for word in ("--only", each) if f".raw.{cache}" in each
            ]
            with exported(vm, paths, cache), tempfile.TemporaryDirectory(prefix="e2e-zfs-") as name:
                config = write_settings(Path(name), vm.nbd_port, pack, [*paths])
                runs += measured(config, Path(name, "state"), ["--cycles", "1", *requested])
    return [run | {"far": within(seen, run)} for run in runs]


def write_settings(directory: Path, port: int, pack: str, names: Sequence[str]) -> Path:
    (directory / "pack.yaml").write_text(small_pack(pack, names), "utf-8")
    nbd = f"kind: nbd, server: 127.0.0.1, port: {port}, export: {MARK}"
    config = directory / "pvebench.yaml"
    config.write_text(
        f"node: lab\naccelerator: tcg\nstate: {directory}/state\npacks: [{directory}/pack.yaml]\n"
        "storages:\n" + "".join(f"  {name}: {{{nbd}{name}}}\n" for name in names),
        "utf-8",
    )
    return config


def within(seen: Sequence[Counters], run: Mapping[str, Any]) -> Counters:
    """Return what the counters of the VM counted in a run, its fill and ramp included."""
    began, ended = (datetime.fromisoformat(run[key]).timestamp() for key in ("started", "finished"))
    before = [each for each in seen if each.seconds <= began][-1:] or [*seen[:1]]
    after = [each for each in seen if each.seconds >= ended][:1] or [*seen[-1:]]
    first, last = before[0], after[0]
    return Counters(
        last.seconds - first.seconds,
        last.disk_bytes - first.disk_bytes,
        last.hits - first.hits,
        last.misses - first.misses,
    )


def device_share(run: Mapping[str, Any]) -> float | None:
    """Return bytes read from the VM's disks over those that the guest read; None: no reads."""
    read = value(run, "bytes", "read")
    return run["far"].disk_bytes / read if read else None


def warmth(run: Mapping[str, Any]) -> str:
    """Return where the bytes came from that a guest has read; empty: it only wrote."""
    share, far = device_share(run), run["far"]
    if share is None:
        return ""
    return "cold" if share >= COLD_SHARE else f"warm, {share:.0%} from disks, {far.hits} ARC hits"


def table(runs: Sequence[Mapping[str, Any]]) -> str:
    """Return lines of Markdown: each run, and the bare disk's in the same configuration."""
    lines = [
        "| Volume | Configuration | Workload | I/O per second | Bare disk | Ratio | Reads |",
        "|---|---|---|---|---|---|---|",
    ]
    split = {(run["workload"], *run["scenario"].partition(".")[::2]): run for run in runs}
    for (workload, storage, rest), run in sorted(split.items()):
        bare = split.get((workload, PLAIN, rest), {"samples": ()})
        rate, yardstick = value(run, "iops"), value(bare, "iops")
        if rate and yardstick:
            numbers = f"{rate:,.0f} | {yardstick:,.0f} | {rate / yardstick:.2f}"
            lines.append(f"| {storage} | {rest} | {workload} | {numbers} | {warmth(run)} |")
    return "\n".join(lines)


def judged(runs: Sequence[dict[str, Any]], requested: Sequence[str]) -> None:
    """Print the runs; fail where one is missing, did not come about, or has another warmth."""
    print(table(runs), flush=True)
    must_be_measured(runs)
    ran = {f"{run['scenario']}/{run['workload']}" for run in runs}
    assert {*requested} <= ran, {*requested} - ran
    for run in runs:
        share, scenario = device_share(run), run["scenario"]
        if share is None:
            continue
        # pvebench has no counters of the VM: where a page cache may be, it says so.
        assert bool(value(run, WARM.name)) is (".writeback" in scenario), run
        # Without one, what the ARC must not keep, and the bare disk, are read each time.
        if ".none" in scenario and ("primarycache" in scenario or scenario.startswith(PLAIN)):
            assert share >= COLD_SHARE, (scenario, run["workload"], share)


def sample(row: Row) -> list[str]:
    """Return the cases of the row's sample, and the same on the bare disk."""
    slugs = [case.slug for case in row.sample()]
    return slugs + [slug.replace(row.storage, PLAIN, 1) for slug in slugs]


def published(vm: HostVm, row: Row) -> None:
    """The sample of a row of zfs-mdadm-2016, on the zvol and on the bare disk."""
    requested = sample(row)
    with made(vm, row.storage) as path:
        judged(measure(vm, row.pack, {row.storage: path}, requested), requested)


def options(vm: HostVm) -> None:
    """All workloads of pool-options on all of `volumes`, in each mode of `CACHES`."""
    with made(vm, "zvol"):
        vm.run("zfs destroy bench/vol")
        paths = create(vm, volumes())
        runs = measure(vm, "pool-options", paths, [f"*.raw.{cache}*" for cache in CACHES])
    judged(runs, [])
    assert len(runs) == len(CACHES) * (len(paths) + 1) * 4


def pieces(vm: HostVm, parts: Sequence[str]) -> Iterator[Piece]:
    """Yield what is to be run and its name, of these parts or of all."""
    if not parts or "options" in parts:
        yield "options: cache, sync, block size, primarycache, compression", partial(options, vm)
    for row in small_rows(OVER_NBD, parts):
        yield f"{row.pack}: {row.storage}", partial(published, vm, row)


if __name__ == "__main__":
    say(f"{VOLUME_BYTES // MIB} MiB volumes")
    sys.exit(run_in_vm(pieces, sys.argv[1:]))

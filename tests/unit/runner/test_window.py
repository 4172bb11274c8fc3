"""What is said of the measured window, and what is not."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from pvebench.model.ports import HostSnapshot
from pvebench.model.volume import BlockCounters
from pvebench.runner.window import Mark, network_samples, window_samples

BLOCK = BlockCounters(
    read_operations=1, write_operations=2, flush_operations=0, read_bytes=4096, write_bytes=8192
)
START = Mark(
    HostSnapshot(
        monotonic=100.0,
        cpu_seconds={"total": 50.0, "qemu": 5.0},
        bytes={"process_read": 10},
        cpus=2,
        context_switches=1000,
        vm_exits=500,
    ),
    BLOCK,
)
END = Mark(
    HostSnapshot(
        monotonic=110.0,
        cpu_seconds={"total": 60.0, "qemu": 9.0},
        bytes={"process_read": 110},
        cpus=2,
        context_switches=4000,
        vm_exits=800,
    ),
    replace(BLOCK, read_operations=51, unmap_bytes=65536),
)


def values(start: Mark, end: Mark) -> dict[tuple[str, str], float]:
    return {(one.metric, one.part): one.value for one in window_samples(start, end)}


def test_counters_are_differences_and_cpu_is_cores() -> None:
    found = values(START, END)
    assert found["window", ""] == 10.0
    assert found["host_cpu", "total"] == 1.0
    assert found["host_cpu", "qemu"] == 0.4
    assert found["host_bytes", "process_read"] == 100.0
    assert found["host_context_switches", ""] == 3000.0
    assert found["vm_exits", ""] == 300.0
    assert (found["qemu_operations", "read"], found["qemu_bytes", "trim"]) == (50.0, 65536.0)


def test_a_pressure_that_was_unknown_at_the_start_has_no_figure() -> None:
    start = replace(START, host=replace(START.host, pressure_seconds={"io": 2.0, "cpu": 9.0}))
    later = {"io": 3.0, "memory": 4.0, "cpu": 8.0}
    found = values(start, replace(END, host=replace(END.host, pressure_seconds=later)))
    pressures = {part: value for (name, part), value in found.items() if name == "host_pressure"}
    assert pressures == {"io": 0.1}


def test_a_counter_that_could_not_be_read_at_the_start_gives_no_number() -> None:
    unread = replace(START.host, context_switches=0, vm_exits=0, cpu_seconds={}, bytes={})
    found = values(replace(START, host=unread), END)
    assert ("vm_exits", "") not in found
    assert ("host_context_switches", "") not in found
    assert not [key for key in found if key[0] in ("host_cpu", "host_bytes")]


def test_a_counter_that_went_back_gives_no_number() -> None:
    assert ("qemu_operations", "read") not in values(
        replace(START, block=replace(BLOCK, read_operations=99)), END
    )


def test_what_nothing_counted_at_one_end_gives_no_number_and_the_rest_does() -> None:
    for marks in ((replace(START, block=None), END), (START, replace(END, block=None))):
        found = values(*marks)
        assert found["host_bytes", "process_read"] == 100.0
        assert not [key for key in found if key[0].startswith("qemu_")]


@dataclass(frozen=True)
class Link:
    """A network to a storage's server, of which some things may not be known."""

    link_bits_per_second: int
    seconds: float | None

    def round_trip(self) -> float | None:
        return self.seconds


@pytest.mark.parametrize(
    ("network", "told"),
    [
        (None, {}),
        (Link(0, None), {}),
        (Link(8_000, None), {"network_limit": 1000.0}),
        (Link(0, 0.25), {"network_round_trip": 0.25}),
        (Link(8_000, 0.0), {"network_limit": 1000.0, "network_round_trip": 0.0}),
    ],
)
def test_of_a_network_only_what_is_known_is_reported(
    network: Link | None, told: dict[str, float]
) -> None:
    assert {one.metric: one.value for one in network_samples(network)} == told

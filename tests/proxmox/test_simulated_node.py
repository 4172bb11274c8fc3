"""The simulated node of `make sim` answers as `node.sh` does; and what was found with it.

Witness: the program itself, run by dash above the stand-in of `pct`.
"""

from __future__ import annotations

import random
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from pvebench.drivers.clocks import SimulatedClock
from pvebench.drivers.proxmox.node.node_ssh import NodeSsh
from pvebench.errors import OutcomeUnknown
from pvebench.model.scenario import Machine
from pvebench.model.units import MIB
from pvebench_lab.lxc.proxmox_container import KIND, BenchContainer, ContainerOptions
from pvebench_lab.lxc.proxmox_container import undo_containers as undo
from testing.container_node import ContainerNode, container_node
from testing.faulty_node import Faults
from testing.simulated_faults import Trouble
from testing.simulated_node import Container, SimulatedNode, SimulatedSsh
from testing.stores import TemporaryStore

MARK, OTHER, DIGEST = "01" * 16, "fe" * 16, "ab" * 32
MAKE = (DIGEST, "512", "1", "fast", "0.0625", "fast", "bench")
QUESTIONS = (
    ("archive", DIGEST),
    *(("container", "9500", mark) for mark in (MARK, OTHER)),
    ("start", "9500", MARK),
    ("make", "9500", MARK, *MAKE),
    ("make", "9500", MARK, *MAKE),
    ("make", "9500", OTHER, *MAKE),
    *(("container", "9500", mark) for mark in (MARK, OTHER)),
    *((verb, "9500", OTHER) for verb in ("start", "stop", "forget", "remove")),
    ("stop", "9500", MARK),
    ("forget", "9500", MARK),
    ("remove", "9500", MARK),
    ("remove", "9500", MARK),
    ("make", "9500", MARK, *MAKE),
    ("container", "9500", MARK),
    ("make", "9501", OTHER, *MAKE),
)


class Hasty(SimulatedClock):
    """A clock whose time an answer takes."""

    def pass_time(self, seconds: float) -> None:
        self._elapsed += seconds


@pytest.fixture
def program(tmp_path: Path) -> Iterator[ContainerNode]:
    with container_node(tmp_path) as made:
        (made.folder / "archives" / f"{DIGEST}.tar.gz").touch()
        yield made


def simulated(node: SimulatedNode, clock: Hasty, trouble: Trouble) -> SimulatedSsh:
    node.now = clock.monotonic
    return SimulatedSsh(node, "a.", clock, trouble, lambda: Faults(0))


def test_the_simulated_node_answers_as_the_program_does(program: ContainerNode) -> None:
    node = SimulatedNode()
    node.containers.clear()
    ssh = simulated(node, Hasty(), Trouble(random.Random(1), {}, calm=True))
    for words in QUESTIONS:
        question = "".join(f"{word}\n" for word in words).encode()
        path = program.folder / "pvebench-node"
        real = subprocess.run([path], input=question, capture_output=True, check=False)
        played = ssh.run(["pvebench-node"], stdin=question)
        error = real.stderr.partition(b"|")[0].strip()  # its cause and next step follow
        assert real.stdout.split(b"\n")[0] == played.stdout.split(b"\n")[0], words
        assert error == played.stderr.strip(), words
        assert real.returncode == played.exit_code, words


class Cut(SimulatedSsh):
    """Loses the answer to `make` at once; the node goes on."""

    def choose(self, values: object) -> float:
        return 500.0

    def spend(self, seconds: float) -> None:
        if seconds == 500.0:
            raise OutcomeUnknown("the answer is lost")
        super().spend(seconds)


def test_one_that_is_made_for_longer_than_an_undo_waits_is_removed_by_a_later_undo(
    tmp_path: Path,
) -> None:
    """Found when the node was modelled: the entry was struck out, and the container came."""
    node, clock = SimulatedNode(), Hasty()
    simulated(node, clock, trouble := Trouble(random.Random(1), {}, calm=True))
    asked = NodeSsh(Cut(node, "a.", clock, trouble, lambda: Faults(0)))
    store = TemporaryStore(tmp_path / "pvebench.db", simulated=False)
    store.journal.open(KIND, {"node": "lab", "vmid": "9500", "mark": MARK})
    options = ContainerOptions(
        archive=DIGEST,
        machine=Machine(memory_bytes=512 * MIB, cpus=1),
        storage="fast",
        size_bytes=64 * MIB,
        root="fast",
    )
    with pytest.raises(OutcomeUnknown):
        BenchContainer(asked, 9500, MARK).make("bench", options)
    (line,) = undo(asked, "lab", store.journal)
    assert "could not remove container 9500 on lab yet: " in line
    assert "is still being made" in line
    assert len(store.journal.pending()) == 1
    clock.pass_time(300.0)
    assert undo(asked, "lab", store.journal) == ["container 9500 on lab removed with its volumes"]
    assert store.journal.pending() == []
    assert isinstance(node.containers.get(9501), Container)
    store.close()

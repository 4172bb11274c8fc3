"""What the two sides of a fleet read of each other."""

from __future__ import annotations

import itertools
import json
import math
import random
import re
import tempfile
from pathlib import Path

from pvebench_fleet import FleetError
from pvebench_fleet.hub.rules import read_lines, read_push
from pvebench_fleet.push import LONGEST_WAIT, Reply, Sender
from pvebench_fleet.run_files import opened
from pvebench_fleet.wire import Shape, unpack
from testing.run_files import exported, store_at
from testing.simulated_fleet import ModelLog, Schedule
from testing.stored_runs import SECOND, run


def fleet_push(content: bytes) -> None:
    """A push at the hub: what is taken can be stored, and each line is taken or refused."""
    unpacked = unpack(content) if content.startswith(b"\x1f\x8b") else content
    batch = read_lines(*read_push(unpacked))
    assert len(batch.lines) + len(batch.refused) == batch.head.count
    for line in batch.lines:
        text = line.model_dump_json()
        assert "\\u0000" not in text
        text.encode("utf-8")
        assert isinstance(line, Shape) or line.seq >= 0


def fleet_answer(content: bytes) -> None:
    """An answer at a site, as body of every status: its position stays, and it waits."""
    log = ModelLog(random.Random(1))
    log.add("r0", 1, bad=False)
    for status in (200, 409, 412, 423, 503):
        sender = Sender(log, lambda *_, s=status: Reply(s, content), "0" * 16, lambda: 1e9)
        waits = [sender.step() for _ in range(4)]
        assert all(0 <= wait <= LONGEST_WAIT for wait in waits)
        assert log.position() == (0, "")
        if status == 200 and sender.contact is None:
            raise FleetError(sender.state)


def run_file(path: Path) -> None:
    """A file of runs: what is taken has finite numbers and text that a terminal may show."""
    with opened(path, {}) as found:
        for one in found.runs():
            shown = (*one.run.definition.facts().items(), *one.environment.facts.items())
            texts = (one.run.case_key, one.run.reason, *itertools.chain(*shown))
            assert all(text.replace("\n", "").isprintable() for text in texts)
            assert all(map(math.isfinite, (sample.value for sample in one.run.samples)))
            assert one.run.node == one.environment.node


def run_file_seeds() -> list[bytes]:
    """Return a file of two runs, the same every time."""
    with tempfile.TemporaryDirectory() as name:
        store = store_at(Path(name), [run(0), run(1, SECOND)])
        content = exported(store, Path(name) / "runs.ndjson").read_bytes()
        store.close()
    return [re.sub(rb'"started":[0-9.]+,"finished":null', b'"started":1,"finished":2', content)]


def fleet_seeds() -> list[bytes]:
    """Return messages of both sides, from a schedule without faults."""
    found: list[bytes] = []
    schedule = Schedule(3)
    schedule._faults = False
    answer = schedule._door.answer

    def recorded(site: str, method: str, path: str, body: bytes) -> tuple[int, bytes]:
        status, content = answer(site, method, path, body)
        found.extend((unpack(body) if path == "push" else body, content))
        return status, content

    object.__setattr__(schedule, "_door", type("Recorder", (), {"answer": staticmethod(recorded)}))
    for _ in range(3):
        schedule._measure(schedule.site)
        schedule._exchange(schedule.site)
    return sorted({one for one in found if one} | {json.dumps({}).encode()}, key=len)

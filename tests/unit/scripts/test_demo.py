"""scripts/demo fills in steps: what was interrupted is gone on with, what is old is not."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PVEBENCH = """\
#!{python}
import pathlib, sys
given = sys.argv[1:]
with open("{log}", "a") as log:
    print(*given, file=log)
value = lambda name: given[given.index(name) + 1]
if "fill" in given:
    state = pathlib.Path(value("--state"))
    state.mkdir()
    (state / "pvebench.db").touch()
else:
    folder = pathlib.Path(value("--directory"))
    folder.mkdir()
    for start in (1000, 2000, 3000):
        if start >= float(value("--from")):
            (folder / f"{{start}}.om").touch()
"""
PROMTOOL = """\
#!{python}
import os, pathlib, sys
path, data = map(pathlib.Path, sys.argv[-2:])
if path.stem == os.environ.get("FAILS"):
    sys.exit("no room on the device")
(data / path.stem).mkdir()
"""
DRIVER = """\
import sys
import demo
from services import Layout
from pathlib import Path
demo.PVEBENCH, demo.find_program = sys.argv[1], lambda *names: sys.argv[2]
layout = Layout(Path(sys.argv[3]))
layout.make()
demo.fill(layout, "127.0.0.1:9620")
"""


class Filler:
    def __init__(self, directory: Path) -> None:
        self.state = directory / "state"
        self.log = directory / "log"
        self.programs = []
        for name, text in (("pvebench", PVEBENCH), ("promtool", PROMTOOL)):
            program = directory / name
            program.write_text(text.format(python=sys.executable, log=self.log), "utf-8")
            program.chmod(0o755)
            self.programs.append(str(program))

    def fill(self, fails: str = "") -> str:
        """Fill; return what went wrong."""
        paths = f"{ROOT / 'scripts' / 'stack'}:{ROOT / 'exporter'}"
        done = subprocess.run(
            [sys.executable, "-c", DRIVER, *self.programs, str(self.state)],
            env=os.environ | {"PYTHONPATH": paths, "FAILS": fails},
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        return done.stderr

    @property
    def done(self) -> list[str]:
        """What pvebench was asked for, in one word each."""
        lines = self.log.read_text("utf-8").splitlines()
        begin = [line.partition("--from ")[2] for line in lines]
        return [
            "fill" if "fill" in line.split() else at for line, at in zip(lines, begin, strict=True)
        ]

    @property
    def blocks(self) -> set[str]:
        return {path.name for path in (self.state / "prometheus" / "data").iterdir()}


@pytest.fixture
def filler(tmp_path: Path) -> Filler:
    return Filler(tmp_path)


def test_an_interrupted_filling_goes_on_where_it_ended(filler: Filler) -> None:
    assert "no room on the device" in filler.fill(fails="2000")
    assert filler.blocks == {"1000"}
    assert filler.fill() == ""
    assert filler.blocks == {"1000", "2000", "3000"}
    assert filler.done == ["fill", "0.0", "1001.0"]


def test_a_whole_one_begins_again(filler: Filler) -> None:
    assert filler.fill() == ""
    assert filler.fill() == ""
    assert filler.done == ["fill", "0.0", "fill", "0.0"]
    assert not (filler.state / "filling.json").exists()


@pytest.mark.parametrize(
    "spoilt", ["old", "other pack", "no store", "half a file", "another thing"]
)
def test_what_does_not_fit_begins_again(filler: Filler, spoilt: str) -> None:
    assert filler.fill(fails="2000")
    file = filler.state / "filling.json"
    known = json.loads(file.read_text("utf-8"))
    if spoilt == "old":
        file.write_text(json.dumps(known | {"end": known["end"] - 4000}), "utf-8")
    elif spoilt == "other pack":
        file.write_text(json.dumps(known | {"pack": "0"}), "utf-8")
    elif spoilt == "no store":
        (filler.state / "simulated" / "pvebench.db").unlink()
    else:
        file.write_text('{"end": 1' if spoilt == "half a file" else "[1]", "utf-8")
    assert filler.fill() == ""
    assert filler.done == ["fill", "0.0", "fill", "0.0"]


def test_a_port_that_answers_at_the_other_loopback_address_is_taken() -> None:
    # A browser that is sent to localhost would see somebody else's pages.
    with socket.socket(socket.AF_INET6) as other:
        other.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        other.bind(("::1", 0))
        other.listen()
        code = "import sys; from ports import port_holder; print(port_holder(int(sys.argv[1])))"
        paths = f"{ROOT / 'scripts' / 'stack'}:{ROOT / 'exporter'}"
        done = subprocess.run(
            [sys.executable, "-c", code, str(other.getsockname()[1])],
            env=os.environ | {"PYTHONPATH": paths},
            capture_output=True,
            text=True,
            check=True,
        )
    assert str(os.getpid()) in done.stdout

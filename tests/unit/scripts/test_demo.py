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
import pathlib, sys, time
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
    end = float(value("--until"))
    for days in (0, 100, 200):
        start = end - 86400.0 * days - 1000
        if start < float(value("--before")):
            (folder / f"{{int(start)}}.om").touch()
            time.sleep(0.3)
    (folder / "0.om").touch()
"""
PROMTOOL = """\
#!{python}
import os, pathlib, sys
path, data = map(pathlib.Path, sys.argv[-2:])
done = sorted(data.iterdir())
if str(len(done)) == os.environ.get("FAILS"):
    sys.exit("no room on the device")
(data / f"{{len(done)}}-{{path.stem}}").mkdir()
"""
DRIVER = """\
import sys
import demo
from services import Layout
from pathlib import Path
demo.PVEBENCH, demo.find_program = sys.argv[1], lambda *names: sys.argv[2]
layout = Layout(Path(sys.argv[3]))
layout.make()
with demo.filled(layout, "127.0.0.1:10620") as filling:
    filling.import_files(until_days=float(sys.argv[4]))
    print("ready", flush=True)
    filling.import_files(until_days=1e9)
"""


class Filler:
    output = ""

    def __init__(self, directory: Path) -> None:
        self.state = directory / "state"
        self.log = directory / "log"
        self.programs = []
        for name, text in (("pvebench", PVEBENCH), ("promtool", PROMTOOL)):
            program = directory / name
            program.write_text(text.format(python=sys.executable, log=self.log), "utf-8")
            program.chmod(0o755)
            self.programs.append(str(program))

    def fill(self, fails: str = "", days: float = 92.0) -> str:
        """Fill; return what went wrong. `fails`: after how many blocks."""
        paths = f"{ROOT / 'scripts' / 'stack'}:{ROOT / 'exporter'}"
        done = subprocess.run(
            [sys.executable, "-c", DRIVER, *self.programs, str(self.state), str(days)],
            env=os.environ | {"PYTHONPATH": paths, "FAILS": fails},
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        self.output = done.stdout
        return done.stderr

    @property
    def done(self) -> list[str]:
        """What pvebench was asked for, in one word each."""
        lines = self.log.read_text("utf-8").splitlines()
        return ["fill" if "fill" in line.split() else "export" for line in lines]

    @property
    def blocks(self) -> list[str]:
        """The starts of the blocks, in the order of their import."""
        names = sorted(path.name for path in (self.state / "prometheus" / "data").iterdir())
        return [name.partition("-")[2] for name in names]


@pytest.fixture
def filler(tmp_path: Path) -> Filler:
    return Filler(tmp_path)


def test_an_interrupted_filling_goes_on_where_it_ended(filler: Filler) -> None:
    assert "no room on the device" in filler.fill(fails="1")
    (newest,) = filler.blocks
    assert filler.fill() == ""
    assert filler.blocks[0] == newest
    assert filler.blocks == sorted(filler.blocks, key=float, reverse=True)
    assert len(set(filler.blocks)) == 4
    assert filler.done == ["fill", "export", "export"]


def test_the_newest_quarter_is_there_before_the_first_page_and_the_rest_is_reported(
    filler: Filler,
) -> None:
    assert filler.fill() == ""
    first, rest = filler.output.split("ready\n")
    assert first.startswith("The first page opens after about 90 s")
    assert first.splitlines()[-1].startswith("Prometheus has the newest 100 of 365 days. ")
    assert rest.startswith("Prometheus has the newest 200 of 365 days. The others take about ")
    last = "Prometheus has the whole year, with its verdicts and alerts."
    assert rest.endswith(f"\n{last}\n")
    # The page shows the same sentence.
    assert (filler.state / "note.txt").read_text("utf-8") == last


def test_after_an_interruption_the_page_does_not_wait_for_the_older_results(filler: Filler) -> None:
    assert "no room on the device" in filler.fill(fails="2")
    assert filler.fill() == ""
    first, rest = filler.output.split("ready\n")
    assert "Prometheus has" not in first
    assert "Prometheus has the whole year" in rest


def test_a_start_after_the_last_file_ends_without_an_error(filler: Filler) -> None:
    assert filler.fill(days=1e9) == ""  # the whole year before the page


def test_a_whole_one_begins_again(filler: Filler) -> None:
    assert filler.fill() == ""
    assert filler.fill() == ""
    assert filler.done == ["fill", "export", "fill", "export"]
    assert not (filler.state / "filling.json").exists()


@pytest.mark.parametrize(
    "spoilt", ["old", "other pack", "no store", "half a file", "another thing"]
)
def test_what_does_not_fit_begins_again(filler: Filler, spoilt: str) -> None:
    assert filler.fill(fails="1")
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
    assert filler.done == ["fill", "export", "fill", "export"]


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

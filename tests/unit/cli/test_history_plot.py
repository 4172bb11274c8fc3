"""`pvebench judge --plot` and the line of blocks below a metric."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from pvebench.cli.main import run_cli

pytestmark = pytest.mark.lab  # it has the command
FIRST = datetime(2026, 1, 1, tzinfo=UTC)
Captured = pytest.CaptureFixture[str]
Levels = dict[range, float]
RECOVERED_THEN_OPEN: Levels = {range(150, 190): 0.8, range(330, 400): 0.85}


def history(path: Path, levels: Levels, runs: int = 400, noise: float = 0.02) -> Path:
    rng = random.Random(5)
    lines = ["time,value,case"]
    for run in range(runs):
        level = next((share for part, share in levels.items() if run in part), 1.0)
        time = FIRST + timedelta(hours=6 * run)
        lines.append(f"{time.isoformat()},{1000 * level * rng.gauss(1, noise):.1f},a<&>b")
    path.write_text("\n".join(lines), "utf-8")
    return path


def drawn(path: Path) -> tuple[list[str], ET.Element]:
    picture = path.with_suffix(".svg")
    run_cli(["judge", str(path), "--plot", str(picture)])
    root = ET.fromstring(picture.read_bytes())
    return ["".join(text.itertext()) for text in root.findall(".//{*}text")], root


def test_the_picture_has_each_step_with_its_state(tmp_path: Path) -> None:
    texts, root = drawn(history(tmp_path / "h.csv", RECOVERED_THEN_OPEN))
    assert "a<&>b" in texts
    steps = [text.partition(": ")[2] for text in texts if "; " in text]
    assert [state.partition("; ")[2].split(" 2026")[0] for state in steps] == [
        "closed: taken back",
        "closed: back at the baseline",
        "open",
    ]
    assert steps[-1].startswith("15% slower")
    # A level between two steps each, and at both ends.
    assert len([line for line in root.findall(".//{*}line") if line.get("class") == "level"]) == 4


def test_a_step_that_does_not_count_is_drawn_with_the_reason(tmp_path: Path) -> None:
    texts, root = drawn(history(tmp_path / "h.csv", {range(396, 400): 0.9}))
    (text,) = [text for text in texts if "not counted" in text]
    assert text.endswith("% slower; not counted: not confirmed yet")
    assert any(line.get("class") == "ignored" for line in root.findall(".//{*}line"))


def test_many_runs_make_no_large_picture(tmp_path: Path) -> None:
    path = history(tmp_path / "h.csv", {}, runs=50_000)
    drawn(path)
    assert path.with_suffix(".svg").stat().st_size < 100_000


def test_the_terminal_has_a_line_of_blocks_with_the_open_step(
    tmp_path: Path, capsys: Captured
) -> None:
    path = history(tmp_path / "h.csv", RECOVERED_THEN_OPEN)
    assert run_cli(["judge", str(path)]) == 1
    blocks, mark = capsys.readouterr().out.splitlines()[-2:]
    assert set(blocks.strip()) <= set("▁▂▃▄▅▆▇█")
    assert len(blocks.strip()) == 58
    assert mark.endswith("open ^")
    assert abs(mark.index("^") - 2 - 58 * 330 / 400) <= 1


def test_a_picture_that_cannot_be_written_is_an_error(tmp_path: Path, capsys: Captured) -> None:
    path = history(tmp_path / "h.csv", {}, runs=20)
    assert run_cli(["judge", str(path), "--plot", str(tmp_path / "none" / "p.svg")]) != 0
    assert "p.svg cannot be written" in capsys.readouterr().err

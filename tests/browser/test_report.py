"""The report in Chromium: from a file, without network, on screens of two sizes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Page

from pvebench.cli.main import run_cli
from testing.packs import write_pack
from testing.simulations import simulate

PACK = """\
pack: shown
title: What a report shows
every: 10m
host: true
axes: {bus: [virtio, scsi], format: [raw], cache: [none, writeback]}
volume: {size: 64M}
measure: {ramp: 1s, runtime: 2s}
workloads:
  - fio: {rw: randread, bs: 4k, iodepth: [1, 16, 256]}
  - fio: {rw: [read, write], bs: 1M, iodepth: 8, title: SEQ1M Q8T1}
"""


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    simulate(folder, pack=write_pack(folder, PACK)).worker.run()
    output = folder / "report.html"
    assert run_cli(["report", "--state", str(folder), "--output", str(output)]) == 0
    return output


@pytest.mark.parametrize("width", [390, 1280])
def test_the_report_opens_from_a_file_and_fits_the_screen(
    report: Path, window: Callable[..., Page], width: int
) -> None:
    page = window(width)
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(report.as_uri())
    assert asked == [report.as_uri()]
    assert page.locator("h2").count() >= 5
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_bars_and_curves_are_drawn(report: Path, window: Callable[..., Page]) -> None:
    page = window()
    page.goto(report.as_uri())
    bars = page.locator("rect.bar")
    lengths = [bars.nth(place).bounding_box() for place in range(bars.count())]
    assert len(lengths) == 5 * 5
    assert all(box is not None and box["width"] > 0 for box in lengths)
    assert page.locator("polyline.curve").count() == 5

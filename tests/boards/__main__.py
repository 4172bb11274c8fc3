"""Check every dashboard in a real Grafana: no error, no "No data", walls without scrolling.

    make boards-test GRAFANA=http://127.0.0.1:9692 [ARGS=--save DIRECTORY]
    make boards-test ARGS='--young first-hour'      or exporter-down, all …; --docs: pictures
    make boards-test GRAFANA=http://127.0.0.1:9692 ARGS=--tasks      or ARGS=--docs

Grafana must show the dashboards without a login, as in `make demo` and `make run`. For the stores
of the first day (`testing/first_day.py` has their names, `all` selects each), the command starts
the Grafana in PATH. Chromium opens each dashboard at three sizes; the command prints all problems
and exits with code 1. With `--tasks`, it performs common tasks on the dashboards of `make demo` and
counts the clicks. Without a Grafana, it exits with code 2.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pictures
from playwright.sync_api import Browser, Page, sync_playwright
from shown import DOWN, on_a_young_store
from tasks import failed_tasks

from testing import http_client
from testing.first_day import YOUNG

ROOT: Final = Path(__file__).resolve().parents[2]
SIZES: Final = ((1920, 1080), (1366, 768), (390, 844))
WALL: Final = "pvebench-wall"
ON_A_WALL: Final = "kiosk&hideLogo=1&theme=dark&_dash.hideTimePicker=true"
FORBIDDEN_TEXTS: Final = (
    r"No data(?! yet|[?:])",
    "Data is missing",
    "Data does not have",
    "Cannot visualize",
    "An unexpected error happened",
)
MIN_WIDTH: Final = 1920
"""Pixels; on narrower screens, half of it without Grafana's menu is too small for long names."""
CUT: Final = """() => [...document.querySelectorAll('section div')]
    .filter(name => !name.children.length && !name.closest('[role=grid]')
        && getComputedStyle(name).textOverflow == 'ellipsis' && name.scrollWidth > name.clientWidth)
    .map(name => name.textContent)"""
"""Returns cut names of bars; tables may be wider than their panels, since they scroll."""
TALL: Final = 3000
"""Pixels; a window of this height loads all panels of a dashboard at once."""


def main() -> int:
    """Check all dashboards; return the exit code."""
    parser = argparse.ArgumentParser(prog="make boards-test")
    parser.add_argument("grafana", nargs="?", default="", help="address, such as http://…:9692")
    parser.add_argument(
        "--save", type=Path, help="save screenshots of each dashboard there, at each size"
    )
    parser.add_argument("--docs", action="store_true", help="write the pictures of docs/images")
    either = parser.add_mutually_exclusive_group()
    stores = (*YOUNG, DOWN)
    either.add_argument("--young", default="", help=f"one of {', '.join(stores)}, or all")
    either.add_argument(
        "--tasks", action="store_true", help="perform tasks in the demo and count the clicks"
    )
    options = parser.parse_args()
    if options.young:
        names = stores if options.young == "all" else (options.young,)
        problems = [
            f"{name}: {problem}"
            for name in names
            for problem in problems_on_a_young_store(name, options)
        ]
    elif options.grafana:
        problems = problems_at(
            options.grafana, options.save, tasks=options.tasks, docs=options.docs
        )
    else:
        print("NOTHING WAS CHECKED: the address of Grafana is missing", file=sys.stderr)
        print("Next step: run make demo, then make boards-test GRAFANA=http://127.0.0.1:9692")
        return 2
    print("\n".join(problems) or "no problems found")
    return 1 if problems else 0


def problems_on_a_young_store(name: str, options: argparse.Namespace) -> list[str]:
    """Return the problems of the dashboards on a store of the first day."""
    with on_a_young_store(name) as address:
        if options.docs:
            return problems_at(address, None, docs=True, store=name)
        return problems_at(address, options.save and options.save / name)


def problems_at(
    address: str, save: Path | None, *, tasks: bool = False, docs: bool = False, store: str = ""
) -> list[str]:
    """Return the problems of a Grafana's dashboards, or the failed tasks; or write pictures."""
    print(f"Grafana {version(address)} at {address}", flush=True)
    with sync_playwright() as playwright:
        arguments = ["--no-sandbox", "--disable-gpu"]
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=arguments)
        if docs:
            problems, page = [], browser.new_page()
            for board in boards():
                where = f"{address}/d/{board['uid']}?{ON_A_WALL}"
                pictures.save(page, board, where, store, wall=board["uid"] == WALL)
        elif tasks:
            problems = list(failed_tasks(browser, address))
        else:
            problems = [
                problem for board in boards() for problem in check(browser, address, save, board)
            ]
        browser.close()
    return problems


def version(address: str) -> str:
    """Return the version of the Grafana at an address."""
    return str(http_client.get(f"{address}/api/health", timeout=10).json()["version"])


def boards() -> list[dict[str, Any]]:
    """Return the committed dashboards."""
    paths = sorted((ROOT / "grafana" / "dashboards").glob("*.json"))
    return [json.loads(path.read_text("utf-8")) | {"file": path.stem} for path in paths]


def check(
    browser: Browser, grafana: str, save: Path | None, board: dict[str, Any]
) -> Iterator[str]:
    """Yield the problems of a dashboard at each size."""
    wall = board["uid"] == WALL
    for width, height in SIZES[:1] if wall else SIZES:
        page = browser.new_page(viewport={"width": width, "height": height if wall else TALL})
        address = f"{grafana}/d/{board['uid']}?{ON_A_WALL if wall else 'theme=dark'}"
        page.goto(address, timeout=pictures.MAX_MILLISECONDS)
        pictures.settle(page)
        where = f"{board['uid']} at {width}×{height}"  # the sign
        yield from (f"{where}: {fault}" for fault in faults(page, height if wall else 0))
        if save:
            save.mkdir(parents=True, exist_ok=True)
            size = "" if wall or width == SIZES[0][0] else f"-{width}"
            page.screenshot(path=save / f"{board['file']}{size}.png")
        page.close()


def faults(page: Page, height: int) -> Iterator[str]:
    """Yield visible problems; `height`: pixels of a screen without scrolling, 0 for none."""
    for panel in page.locator("[data-testid='data-testid Panel status error']").all():
        title = panel.locator("xpath=ancestor::section").first.inner_text().split("\n")[0]
        yield f"error in {title!r}"
    text = page.locator("body").inner_text()
    yield from (f"shows {words!r}" for words in FORBIDDEN_TEXTS if re.search(words, text))
    if page.viewport_size["width"] >= MIN_WIDTH or height:
        yield from (f"name {name!r} is cut" for name in page.evaluate(CUT))
    if height:
        bottoms = page.evaluate(
            "() => [...document.querySelectorAll('.react-grid-item')]"
            ".map(item => item.getBoundingClientRect().bottom)"
        )
        if max(bottoms, default=0) > height:
            yield f"height {max(bottoms):.0f} pixels exceeds the screen"


if __name__ == "__main__":
    sys.exit(main())

"""Look at every board in a real Grafana: no error, no "No data", walls without scrolling.

    make boards-test GRAFANA=http://127.0.0.1:9692 [ARGS=--save DIRECTORY]
    make boards-test ARGS='--young first-hour'
    make boards-test GRAFANA=http://127.0.0.1:9692 ARGS=--tasks

Grafana must be one that shows the boards without a login, as that of `make demo` and `make run`
does; on the stores of the first day (`support/young.py` has their names, `all` is each) one that
is in PATH is started. Each is opened in Chromium at three sizes; what is wrong is printed, and the
exit code is 1. With `--tasks` what people ask the boards of `make demo` is done with clicks
instead.
Without a Grafana it says so and ends with 2: nothing was looked at.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from playwright.sync_api import Browser, Page, sync_playwright
from shown import on_a_young_store
from tasks import failed_tasks

from support import asking
from support.young import YOUNG

ROOT: Final = Path(__file__).resolve().parents[2]
SIZES: Final = ((1920, 1080), (1366, 768), (1280, 720))
WALLS: Final = {"pvebench-wall": (1920, 1080), "pvebench-wall-720": (1280, 720)}
"""Wall -> the screen that it is made for."""
ON_A_WALL: Final = "kiosk&hideLogo=1&theme=dark&_dash.hideTimePicker=true"
MOST_MILLISECONDS: Final = 120_000
NOT_TO_BE_SEEN: Final = (
    "No data",
    "Data is missing",
    "Data does not have",
    "Cannot visualize",
    "An unexpected error happened",
)
LEAST_WIDTH: Final = 1920
"""Pixels; half of a narrower screen, beside Grafana's menu, is too small for the longest names."""
CUT: Final = """() => [...document.querySelectorAll('section div')]
    .filter(one => !one.children.length && !one.closest('[role=grid]')
        && getComputedStyle(one).textOverflow == 'ellipsis' && one.scrollWidth > one.clientWidth)
    .map(one => one.textContent)"""
"""Names of bars that end with an ellipsis; tables are wider than their panels and scroll."""
TALL: Final = 3000
"""Pixels; so high a window has all panels of a board loaded at once."""


def main() -> int:
    """Look at all boards; return the exit code."""
    parser = argparse.ArgumentParser(prog="make boards-test")
    parser.add_argument("grafana", nargs="?", default="", help="address, such as http://…:9692")
    parser.add_argument("--save", type=Path, help="put a picture of each board there")
    either = parser.add_mutually_exclusive_group()
    either.add_argument("--young", default="", help=f"one of {', '.join(YOUNG)}, or all")
    either.add_argument("--tasks", action="store_true", help="of the demo, and count the clicks")
    options = parser.parse_args()
    if options.young:
        names = list(YOUNG) if options.young == "all" else [options.young]
        wrong = [
            f"{name}: {one}" for name in names for one in wrong_on_a_young_store(name, options)
        ]
    elif options.grafana:
        wrong = wrong_at(options.grafana, options.save, tasks=options.tasks)
    else:
        print("NOTHING WAS LOOKED AT: no Grafana was named.", file=sys.stderr)
        print("Next step: make demo beside it, then make boards-test GRAFANA=http://127.0.0.1:9692")
        return 2
    print("\n".join(wrong) or "the boards show what they should")
    return 1 if wrong else 0


def wrong_on_a_young_store(name: str, options: argparse.Namespace) -> list[str]:
    """Return what is wrong with the boards on a store of the first day."""
    with on_a_young_store(name) as address:
        return wrong_at(address, options.save and options.save / name)


def wrong_at(address: str, save: Path | None, *, tasks: bool = False) -> list[str]:
    """Return what is wrong with the boards of a Grafana, or which tasks they do not serve."""
    print(f"Grafana {version(address)} at {address}", flush=True)
    with sync_playwright() as playwright:
        arguments = ["--no-sandbox", "--disable-gpu"]
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=arguments)
        if tasks:
            wrong = list(failed_tasks(browser, address))
        else:
            wrong = [one for board in boards() for one in looked_at(browser, address, save, board)]
        browser.close()
    return wrong


def version(address: str) -> str:
    """Return which Grafana answers there."""
    return str(asking.get(f"{address}/api/health", timeout=10).json()["version"])


def boards() -> list[dict[str, Any]]:
    """Return the committed boards."""
    paths = sorted((ROOT / "grafana" / "dashboards").glob("*.json"))
    return [json.loads(path.read_text("utf-8")) | {"file": path.stem} for path in paths]


def looked_at(
    browser: Browser, grafana: str, save: Path | None, board: dict[str, Any]
) -> Iterator[str]:
    """Yield what is wrong with a board at each size."""
    wall = WALLS.get(board["uid"])
    for width, height in (wall,) if wall else SIZES:
        page = browser.new_page(viewport={"width": width, "height": height if wall else TALL})
        address = f"{grafana}/d/{board['uid']}?{ON_A_WALL if wall else 'theme=dark'}"
        page.goto(address)
        settle(page)
        where = f"{board['uid']} at {width}×{height}"  # the sign
        yield from (f"{where}: {fault}" for fault in faults(page, height if wall else 0))
        if save and (wall or width == SIZES[0][0]):
            save.mkdir(parents=True, exist_ok=True)
            page.screenshot(path=save / f"{board['file']}.png")
        page.close()


def settle(page: Page) -> None:
    """Wait until every panel has its answer."""
    page.wait_for_selector("[data-testid^='data-testid Panel header']", timeout=MOST_MILLISECONDS)
    page.wait_for_load_state("networkidle", timeout=MOST_MILLISECONDS)
    page.wait_for_timeout(2000)  # ms; drawing is told nobody


def faults(page: Page, height: int) -> Iterator[str]:
    """Yield what nobody should see; `height` in pixels: of a screen without scrolling."""
    for panel in page.locator("[data-testid='data-testid Panel status error']").all():
        title = panel.locator("xpath=ancestor::section").first.inner_text().split("\n")[0]
        yield f"an error in {title!r}"
    text = page.locator("body").inner_text()
    yield from (f"{words!r} is said" for words in NOT_TO_BE_SEEN if re.search(words, text))
    if page.viewport_size["width"] >= LEAST_WIDTH or height:
        yield from (f"the name {name!r} is cut" for name in page.evaluate(CUT))
    if height:
        bottoms = page.evaluate(
            "() => [...document.querySelectorAll('.react-grid-item')]"
            ".map(one => one.getBoundingClientRect().bottom)"
        )
        if max(bottoms, default=0) > height:
            yield f"it is {max(bottoms):.0f} pixels high"


if __name__ == "__main__":
    sys.exit(main())

"""Pictures of the dashboards in docs/images, of a Grafana that shows `make demo`."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any, Final

from PIL import Image
from playwright.sync_api import Page

IMAGES: Final = Path(__file__).resolve().parents[2] / "docs" / "images"
IN_FRONT: Final = ("overview", "wall", "upgrades", "case")
"""Dashboards whose pictures other pages show too; others are in a folder of their own."""
SIZES: Final = ((1920, 1620), (1366, 1366))
"""Sizes in pixels: of a workstation, whose pictures have no suffix, and of a laptop."""
SCREEN: Final = (1920, 1080)
"""Size of a wall, in pixels."""
MAX_MILLISECONDS: Final = 120_000
LOADED: Final = """() => !document.querySelector('[aria-label="Panel loading bar"]')"""
"""Whether no panel of Grafana waits for a result."""
COLORS: Final = 128
"""Colors of a picture, which keep it small; by coverage, so that thin lines keep theirs."""


def picture_of(board: dict[str, Any], store: str, suffix: str = "") -> Path:
    """Return the file of a dashboard's picture; `store`: of the first day, or empty."""
    name = board["uid"].removeprefix("pvebench-") + suffix
    if store:
        return IMAGES / store / f"{name}.png"
    in_front = not suffix and name in IN_FRONT
    return (IMAGES if in_front else IMAGES / "dashboards") / f"{name}.png"


def settle(page: Page) -> None:
    """Wait until every panel has its result."""
    page.wait_for_selector("[data-testid^='data-testid Panel header']", timeout=MAX_MILLISECONDS)
    page.wait_for_load_state("networkidle", timeout=MAX_MILLISECONDS)
    for _ in range(2):  # results of variables start further queries
        page.wait_for_function(LOADED, timeout=MAX_MILLISECONDS)
        page.wait_for_timeout(1000)  # ms; there is no event for drawing


def save(page: Page, board: dict[str, Any], address: str, store: str, *, wall: bool) -> None:
    """Write the pictures of a dashboard that is open at an address.

    Args:
        page: one for all dashboards, whose cache has the scripts of Grafana.
    """
    for width, height in (SCREEN,) if wall else SIZES:
        suffix = "" if width == SIZES[0][0] else f"-{width}"
        file = picture_of(board, store, suffix)
        file.parent.mkdir(exist_ok=True)
        page.set_viewport_size({"width": width, "height": height})
        page.goto(address, timeout=MAX_MILLISECONDS)
        settle(page)
        image = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
        image.quantize(COLORS, Image.Quantize.MAXCOVERAGE).save(file, optimize=True)

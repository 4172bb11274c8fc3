"""Pictures of the dashboards in docs/images, of a Grafana that shows `make demo`."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any, Final

from PIL import Image
from playwright.sync_api import Browser, Page

IMAGES: Final = Path(__file__).resolve().parents[2] / "docs" / "images"
IN_FRONT: Final = ("overview", "wall", "upgrades", "case")
"""Dashboards whose pictures other pages show too; others are in a folder of their own."""
SIZE: Final = (1620, 1620)
MAX_MILLISECONDS: Final = 120_000
LOADED: Final = """() => !document.querySelector('[aria-label="Panel loading bar"]')"""
"""Whether no panel of Grafana waits for a result."""
COLORS: Final = 128
"""Colors of a picture, which keep it small."""


def picture_of(board: dict[str, Any], store: str) -> Path:
    """Return the file of a dashboard's picture; `store`: of the first day, or empty."""
    name = board["uid"].removeprefix("pvebench-")
    if store:
        return IMAGES / store / f"{name}.png"
    return (IMAGES if name in IN_FRONT else IMAGES / "dashboards") / f"{name}.png"


def settle(page: Page) -> None:
    """Wait until every panel has its result."""
    page.wait_for_selector("[data-testid^='data-testid Panel header']", timeout=MAX_MILLISECONDS)
    page.wait_for_load_state("networkidle", timeout=MAX_MILLISECONDS)
    for _ in range(2):  # results of variables start further queries
        page.wait_for_function(LOADED, timeout=MAX_MILLISECONDS)
        page.wait_for_timeout(1000)  # ms; there is no event for drawing


def save(
    browser: Browser, board: dict[str, Any], address: str, screen: tuple[int, int], store: str
) -> None:
    """Write the picture of a dashboard that is open at an address."""
    width, height = screen
    file = picture_of(board, store)
    file.parent.mkdir(exist_ok=True)
    page = browser.new_page(viewport={"width": width, "height": height})
    page.goto(address, timeout=MAX_MILLISECONDS)
    settle(page)
    image = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
    image.quantize(COLORS).save(file, optimize=True)
    page.close()

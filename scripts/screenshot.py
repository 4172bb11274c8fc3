"""Update docs/images/page.png: the web UI of a simulated instance, which states that it is.

Run by `make screenshot`.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright
from starlette.applications import Starlette

from pvebench.config.known_issues import load_known_issues
from pvebench.model.disk import Bus, Disk
from pvebench.verdicts.verdict_updates import VerdictService
from testing.simulated_site import app_of, lively, served

ROOT = Path(__file__).resolve().parents[1]
TARGET = ROOT / "docs" / "images" / "page.png"
LARGEST_BYTES = 300_000


def main() -> None:
    """Serve the simulated instance and save the screenshot."""
    TARGET.parent.mkdir(exist_ok=True)
    with (
        tempfile.TemporaryDirectory() as directory,
        served(_judged(Path(directory))) as address,
        sync_playwright() as playwright,
    ):
        browser = playwright.chromium.launch(
            executable_path="/usr/bin/chromium", args=["--no-sandbox", "--disable-gpu"]
        )
        page = browser.new_page(viewport={"width": 1280, "height": 720}, color_scheme="light")
        page.goto(address)
        page.screenshot(path=TARGET, full_page=True)
        browser.close()
    # With few flat colors, a palette saves two thirds of the bytes without a visible change.
    with Image.open(TARGET) as picture:
        small = picture.convert("RGB").quantize(128, dither=Image.Dither.NONE)
    small.save(TARGET, optimize=True)
    size = TARGET.stat().st_size
    if size > LARGEST_BYTES:
        raise SystemExit(f"{TARGET} has {size} bytes, more than {LARGEST_BYTES}")
    print(f"wrote {TARGET} ({size} bytes)")


def _slower_virtio(disk: Disk) -> float:
    return 0.82 if disk.bus is Bus.VIRTIO else 1.0


def _judged(directory: Path) -> Starlette:
    """Return the application with a history, an upgrade, and its verdict."""
    simulation = lively(directory, upgrade=300, end=360, cost=_slower_virtio)
    verdicts = VerdictService(simulation.results, load_known_issues()).judge()
    return app_of(simulation, verdicts=lambda: verdicts)


if __name__ == "__main__":
    main()

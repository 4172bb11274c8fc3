"""Update docs/images/*.png: the web UI, a card and a report of a simulated instance.

Run by `make screenshot`. The images state that their numbers are simulated.
"""

from __future__ import annotations

import tempfile
from datetime import UTC, datetime
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, sync_playwright
from starlette.applications import Starlette

from pvebench.cli.main import run_cli
from pvebench.config.known_issues import load_known_issues
from pvebench.model.disk import Bus, Disk
from pvebench.report.card import card_png, make_card
from pvebench.verdicts.ranking import of_storage
from pvebench.verdicts.verdict_updates import VerdictService
from testing.demo_year import filled_store
from testing.demo_year import results_of as demo_results
from testing.simulated_site import app_of, lively, served
from testing.simulations import simulate

ROOT = Path(__file__).resolve().parents[1]
TARGET = ROOT / "docs" / "images" / "page.png"
CARD = ROOT / "docs" / "images" / "card.png"
REPORT = ROOT / "docs" / "images" / "report.png"
PACK = ROOT / "scenarios" / "cache-bus-format-2017.yaml"
LARGEST_BYTES = 300_000


def main() -> None:
    """Serve the simulated instance and save the screenshots."""
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
        draw_card(Path(directory) / "demo")
        draw_report(browser, Path(directory) / "report")
        browser.close()
    for path in (TARGET, REPORT):
        # With few flat colors, a palette saves two thirds of the bytes without a visible change.
        with Image.open(path) as picture:
            small = picture.convert("RGB").quantize(128, dither=Image.Dither.NONE)
        small.save(path, optimize=True)
    for path in (TARGET, CARD, REPORT):
        size = path.stat().st_size
        if size > LARGEST_BYTES:
            raise SystemExit(f"{path} has {size} bytes, more than {LARGEST_BYTES}")
        print(f"wrote {path} ({size} bytes)")


def _slower_virtio(disk: Disk) -> float:
    return 0.82 if disk.bus is Bus.VIRTIO else 1.0


def _judged(directory: Path) -> Starlette:
    """Return the application with a history, an upgrade, and its verdict."""
    simulation = lively(directory, upgrade=300, end=360, cost=_slower_virtio)
    verdicts = VerdictService(simulation.results, load_known_issues()).judge()
    return app_of(simulation, verdicts=lambda: verdicts)


def draw_card(folder: Path) -> None:
    """Draw the card of one storage of the demo year, with a change in its last weeks."""
    folder.mkdir()
    store = filled_store(folder, days=45)
    results = demo_results(store)
    verdicts = VerdictService(results, load_known_issues()).judge()
    view = results.now
    cases = of_storage({key: planned.definition for key, planned in view.planned.items()})
    card = make_card(view, verdicts, datetime.now(UTC), cases["pve1/local-zfs"])
    CARD.write_bytes(card_png(card))
    store.close()


def draw_report(browser: Browser, folder: Path) -> None:
    """Run a pack in the simulation, write its report, and save a screenshot of its top."""
    folder.mkdir()
    simulate(folder, pack=PACK).worker.run()
    file = folder / "report.html"
    options = ["--state", str(folder), "--pack", str(PACK), "--reference", "published"]
    if run_cli(["report", *options, "--output", str(file)]):
        raise SystemExit("writing the report failed")
    page = browser.new_page(viewport={"width": 1280, "height": 1250}, color_scheme="light")
    page.goto(file.as_uri())
    page.screenshot(path=REPORT)


if __name__ == "__main__":
    main()

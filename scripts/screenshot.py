"""Draw docs/images/page.png anew: the page at / of a simulated instance, in Chromium.

Run by `make screenshot`. The picture says by itself that its numbers are invented.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

from support.site import app_of, lively, served

TARGET = Path(__file__).resolve().parents[1] / "docs" / "images" / "page.png"
LARGEST_BYTES = 300_000


def main() -> None:
    """Serve, look, save."""
    TARGET.parent.mkdir(exist_ok=True)
    with (
        tempfile.TemporaryDirectory() as directory,
        served(app_of(lively(Path(directory)))) as address,
        sync_playwright() as playwright,
    ):
        browser = playwright.chromium.launch(
            executable_path="/usr/bin/chromium", args=["--no-sandbox", "--disable-gpu"]
        )
        page = browser.new_page(viewport={"width": 1280, "height": 720}, color_scheme="light")
        page.goto(address)
        page.screenshot(path=TARGET, full_page=True)
        browser.close()
    size = TARGET.stat().st_size
    if size > LARGEST_BYTES:
        raise SystemExit(f"{TARGET} has {size} bytes, more than {LARGEST_BYTES}")
    print(f"wrote {TARGET} ({size} bytes)")


if __name__ == "__main__":
    main()

"""Chromium, and a simulated instance for it to look at."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from testing.simulated_site import Instance, app_of, lively, served

ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]


@pytest.fixture(scope="module")
def instance(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Instance]:
    simulation = lively(tmp_path_factory.mktemp("instance"))
    with served(app_of(simulation)) as address:
        yield Instance(simulation, address)


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=ARGUMENTS)
        yield opened
        opened.close()


@pytest.fixture
def window(browser: Browser) -> Iterator[Callable[..., Page]]:
    """Open a window; the test fails if the browser complains about anything in one."""
    opened: list[Page] = []
    complaints: list[str] = []

    def open_window(width: int = 1280, height: int = 720, scheme: str = "light") -> Page:
        page = browser.new_page(
            viewport={"width": width, "height": height},
            color_scheme=scheme,  # type: ignore[arg-type] # light or dark
        )
        page.set_default_timeout(120_000)  # ms; the other core may be emulating a guest
        expect.set_options(timeout=120_000)
        # Violations of the content security policy are console messages too.
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        opened.append(page)
        return page

    yield open_window
    for page in opened:
        page.close()
    assert complaints == []

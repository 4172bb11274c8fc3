"""The page at / in a real browser."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import sync_playwright

from pvebench.metrics import Page
from pvebench.web import WebServer, listen
from pvebench.web.app import make_app
from support.packs import simulate
from support.prometheus import free_port

BROWSER = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    simulation = simulate(tmp_path, cycles=2)
    for _ in range(5):
        simulation.worker.step()
    page = Page.__new__(Page)  # the landing page needs none
    app = make_app(page=page, statuses=lambda: [simulation.worker.status], ready=lambda: True)
    where = f"127.0.0.1:{free_port()}"
    with WebServer(app, listen(where)):
        yield f"http://{where}/"


def test_the_landing_page_says_what_runs_and_leads_to_the_metrics(address: str) -> None:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=BROWSER)
        page = browser.new_page()
        page.goto(address)
        assert page.get_by_role("heading", name="pvebench").is_visible()
        assert page.get_by_text("cycle 1: 4 of 12").is_visible()
        assert page.get_by_role("link", name="Metrics").get_attribute("href") == "/metrics"
        page.get_by_role("link", name="Healthy").click()
        assert page.get_by_text("pvebench is healthy.").is_visible()
        browser.close()

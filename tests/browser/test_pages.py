"""The pages in a real browser: sizes, themes, keyboard, contrast, refresh."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from urllib.parse import quote

import pytest
from playwright.sync_api import Browser, Page, expect

from pvebench.metrics.exposition import Page as Metrics
from pvebench.store.live_results import LiveResults
from pvebench.verdicts.verdict_updates import VerdictService
from pvebench.web.endpoints import Pages
from pvebench.web.server import make_app
from testing.changes import START, upgrade
from testing.simulated_site import Instance, app_of, lively, results_of, served
from testing.simulations import simulate
from testing.stores import TemporaryStore

Open = Callable[..., Page]

SIZES = [(360, 740), (1280, 720), (1920, 1080)]
PHONE = (390, 844)
PAPER = 794
"""A4 upright, as wide as a browser makes it."""
YOUNG = {"empty": 0, "first run": 2, "first cycle": 13, "second cycle": 27}
"""Steps of a worker."""

# Contrast ratio, class and text of every element with text of its own, the poorest first.
CONTRAST = """
() => {
  const rgb = (text) => text.match(/[\\d.]+/g).map(Number);
  const part = (value) => {
    value /= 255;
    return value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
  };
  const light = ([r, g, b]) => 0.2126 * part(r) + 0.7152 * part(g) + 0.0722 * part(b);
  const behind = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const colour = rgb(getComputedStyle(at).backgroundColor);
      if (colour.length === 3 || colour[3] > 0) return colour;
    }
    return [255, 255, 255];
  };
  const found = [];
  for (const element of document.querySelectorAll("body *")) {
    const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
    if (!own || !element.checkVisibility()) continue;
    const style = getComputedStyle(element);
    const front = rgb(element instanceof SVGElement ? style.fill : style.color);
    const [low, high] = [light(front), light(behind(element))].sort((a, b) => a - b);
    found.push([(high + 0.05) / (low + 0.05), element.className.baseVal ?? element.className,
      element.textContent.trim().slice(0, 40)]);
  }
  return found.sort((a, b) => a[0] - b[0]);
}
"""
EMPTY = """
() => [...document.querySelectorAll("main section, main td, main p, main li, main ol, main ul")]
  .filter((one) => one.checkVisibility() && !one.textContent.trim()).map((one) => one.outerHTML)
"""
SMALLEST_TEXT = """
() => Math.min(...[...document.querySelectorAll("main *:not(svg *)")]
  .map((element) => parseFloat(getComputedStyle(element).fontSize)))
"""


def wait_until(true: Callable[[], bool]) -> None:
    """Wait for something in the page; Playwright's own way is eval(), which the policy forbids."""
    deadline = time.monotonic() + 120
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def paths(instance: Instance) -> list[str]:
    failed = instance.simulation.store.runs(limit=1, not_ok=True)[0]
    return ["/", f"/cases/{quote(failed.case_key)}", f"/runs/{failed.number}", "/runs/1"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(("width", "height"), SIZES)
def test_nothing_overflows_and_everything_can_be_read(
    instance: Instance, window: Open, width: int, height: int, scheme: str
) -> None:
    page = window(width, height, scheme)
    for path in paths(instance):
        page.goto(instance.address + path)
        assert page.evaluate("document.documentElement.scrollWidth") <= width, path
        contrasts = page.evaluate(CONTRAST)
        assert len(contrasts) > 20
        assert contrasts[0][0] >= 4.5, (path, contrasts[0])
        assert page.evaluate(SMALLEST_TEXT) >= 12


@pytest.mark.parametrize(("width", "height"), [PHONE, (1920, 1080)])
def test_tables_fill_the_screen_and_are_not_cut(
    instance: Instance, window: Open, width: int, height: int
) -> None:
    page = window(width, height)
    page.goto(instance.address)
    boxes = [one.bounding_box() for one in page.locator(".matrix").all()]
    edges = [(box["x"], box["x"] + box["width"]) for box in boxes if box]
    assert len(edges) == 2
    assert max(right for _, right in edges) <= width
    assert max(right for _, right in edges) - min(left for left, _ in edges) > 0.9 * width


def test_light_and_dark_differ(instance: Instance, window: Open) -> None:
    colours = set()
    for scheme in ("light", "dark"):
        page = window(scheme=scheme)
        page.goto(instance.address)
        colours.add(page.evaluate("getComputedStyle(document.body).backgroundColor"))
    assert len(colours) == 2


def test_on_a_wall_all_of_a_small_matrix_is_seen_without_scrolling(
    instance: Instance, window: Open
) -> None:
    page = window(1920, 1080, "dark")
    page.goto(instance.address)
    for table in page.locator("table.matrix").all():
        box = table.bounding_box()
        assert box is not None
        assert box["y"] + box["height"] <= 1080
        assert box["x"] + box["width"] <= 1920


def test_the_page_says_what_runs_what_is_next_and_what_came_out(
    instance: Instance, window: Open
) -> None:
    page = window()
    page.goto(instance.address)
    now = page.get_by_role("region", name="Now")
    assert now.get_by_text("lab: measuring").is_visible()
    assert now.get_by_text("5 s of about 8 s").is_visible()
    assert now.get_by_role("progressbar", name="This cycle").is_visible()
    assert now.get_by_role("listitem").count() == 4
    table = page.get_by_role(
        "table", name="4k random read, depth 32 randread-4k-qd32, storage local"
    )
    assert table.get_by_role("columnheader", name="cache writeback").is_visible()
    assert table.get_by_role("rowheader", name="virtio raw").is_visible()
    assert table.get_by_role("link", name="IOPS").count() == 6
    assert table.get_by_role("img", name="runs: first").count() == 6
    assert page.get_by_text("Simulated.").is_visible()


def test_the_way_to_metrics_health_and_api_is_on_every_page(
    instance: Instance, window: Open
) -> None:
    page = window()
    for path in paths(instance):
        page.goto(instance.address + path)
        assert page.get_by_role("link", name="Metrics").get_attribute("href") == "/metrics"
        assert page.get_by_role("link", name="API").get_attribute("href") == "/api/v1/results"
    page.get_by_role("link", name="Healthy").click()
    assert page.get_by_text("pvebench is healthy.").is_visible()


def test_the_evidence_of_a_failure_is_one_click_away(instance: Instance, window: Open) -> None:
    page = window()
    page.goto(instance.address)
    failed = instance.simulation.store.runs(limit=1, not_ok=True)[0]
    page.get_by_role("link", name=f"{failed.outcome}: run {failed.number}").click()
    assert page.get_by_role("heading", level=1).inner_text().endswith(f"× {failed.outcome}")
    assert page.get_by_text(failed.reason).first.is_visible()
    configuration = page.get_by_role("region", name="Effective configuration")
    assert configuration.is_visible()
    assert '"cache":' in configuration.inner_text()


def test_the_upgrade_is_marked_in_the_trend_of_a_case(instance: Instance, window: Open) -> None:
    page = window()
    page.goto(instance.address + paths(instance)[1])
    assert page.get_by_role("img", name="Trend from").is_visible()
    assert page.locator("svg.chart .mark").count() == 1
    assert page.get_by_text("kernel simulated-1 → simulated-2").is_visible()


def test_tab_reaches_the_skip_link_first_then_links_and_tables_and_shows_where_it_is(
    instance: Instance, window: Open
) -> None:
    page = window()
    page.goto(instance.address)
    page.keyboard.press("Tab")
    focused = "document.activeElement"
    assert page.evaluate(f"{focused}.textContent") == "Skip to content"
    assert page.evaluate(f"{focused}.getBoundingClientRect().left") >= 0
    reached, regions = set(), set()
    for _ in range(80):
        page.keyboard.press("Tab")
        if page.evaluate(f"{focused} === document.body"):
            break
        assert page.evaluate(f"getComputedStyle({focused}).outlineStyle") == "solid"
        reached.add(page.evaluate(f"{focused}.getAttribute('href')"))
        regions.add(page.evaluate(f"{focused}.getAttribute('role') && {focused}.id"))
    tables = page.eval_on_selector_all(".scroll", "all => all.map((one) => one.id)")
    assert len(tables) == 3
    assert set(tables) <= regions
    links = page.eval_on_selector_all(
        "a[href]:not(.skip)",
        "all => all.filter((a) => a.checkVisibility()).map((a) => a.getAttribute('href'))",
    )
    assert set(links) <= reached


def test_the_skip_link_leads_past_the_head(instance: Instance, window: Open) -> None:
    page = window()
    page.goto(instance.address)
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"


def test_on_a_phone_the_year_scrolls_by_key_inside_its_own_region_from_its_newest_end(
    instance: Instance, window: Open
) -> None:
    page = window(360, 740)
    page.goto(instance.address)
    region = page.locator("#year-scroll")
    region.focus()
    page.keyboard.press("ArrowLeft")
    # From the right end on it counts downwards.
    wait_until(lambda: region.evaluate("element => element.scrollLeft") < 0)
    assert page.evaluate("window.scrollX") == 0


def test_a_new_run_comes_onto_the_page_by_itself_and_focus_and_scroll_stay(
    tmp_path_factory: pytest.TempPathFactory, window: Open
) -> None:
    simulation = lively(tmp_path_factory.mktemp("moving"))
    with served(app_of(simulation)) as address:
        page = window(360, 740)
        page.clock.install()
        page.goto(address)
        page.locator("td a").last.focus()
        page.evaluate(
            "document.activeElement.marked = true;"
            "document.activeElement.closest('.scroll').scrollLeft = 30;"
            "document.querySelector('details').open = true"
        )
        scrolled = page.evaluate("window.scrollY")
        assert scrolled > 0
        before = page.locator("#clock").inner_text()
        case = simulation.worker._queue[0]
        # The history may fail; this run may not: one that did keeps the age of the last good one.
        simulation.world.faults._rates.clear()
        simulation.worker.step()
        page.clock.run_for(16_000)
        expect(page.locator("#clock")).not_to_have_text(before)
        kept = page.evaluate(
            "[document.activeElement.marked, document.activeElement.closest('.scroll').scrollLeft,"
            " document.querySelector('details').open]"
        )
        assert kept == [True, 30, True]
        # A line more or less above may move the page, but not to its top.
        assert page.evaluate("window.scrollY") == pytest.approx(scrolled, abs=200)
        assert simulation.store.runs(limit=1)[0].case_key == case.key
        cell = page.locator(f'td:has(a[href="/cases/{quote(case.key)}"])')
        assert "0 s ago" in cell.inner_text()


def test_a_new_failure_goes_to_the_top_and_the_focus_stays_where_it_was(
    tmp_path_factory: pytest.TempPathFactory, window: Open
) -> None:
    simulation = lively(tmp_path_factory.mktemp("failing"))
    with served(app_of(simulation)) as address:
        page = window()
        page.clock.install()
        page.goto(address)
        page.evaluate("document.querySelector('.failures a').focus()")
        focused = page.evaluate("document.activeElement.getAttribute('href')")
        rates = simulation.world.faults._rates
        rates |= dict.fromkeys(rates, 1.0)
        simulation.worker.step()
        number = simulation.store.runs(limit=1, not_ok=True)[0].number
        page.clock.run_for(16_000)
        page.wait_for_selector(f"#failure-{number}")
        top = page.locator(".failures li").first
        assert top.get_attribute("id") == f"failure-{number}"
        assert page.evaluate("document.activeElement.getAttribute('href')") == focused


def test_a_page_that_cannot_be_updated_says_so_until_it_can(
    instance: Instance, window: Open
) -> None:
    page = window()
    page.clock.install()
    page.goto(instance.address)
    # Not by stopping the server: the browser itself would complain on its console.
    page.evaluate(
        "() => { window.real = fetch; window.fetch = () => Promise.reject(new Error('gone')); }"
    )
    page.clock.run_for(16_000)
    page.get_by_text("The values are outdated").wait_for()
    page.evaluate("() => { window.fetch = window.real; }")
    page.clock.run_for(16_000)
    expect(page.locator("#lost")).to_have_text("")


def test_without_javascript_the_page_is_whole(instance: Instance, browser: Browser) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(instance.address)
    assert page.get_by_role("table").count() == 2
    page.get_by_text("Earlier runs").click()
    assert page.locator(".failures li").last.is_visible()
    context.close()


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of an instance with an open change, judged."""
    store = TemporaryStore(tmp_path_factory.mktemp("judged") / "pvebench.db", simulated=True)
    store.begin_cycle("c1", node="lab", pack="quick", tier="wall", planned=12)
    upgrade(store, slower=1.25)
    results = LiveResults(store)
    verdicts = VerdictService(results, ()).judge()
    pages = Pages(results, list, lambda: START + timedelta(days=36), lambda: verdicts)
    app = make_app(Metrics.__new__(Metrics), pages)
    with served(app) as address:
        yield address


def test_an_open_change_is_read_first_and_leads_to_its_cases(judged: str, window: Open) -> None:
    page = window(*PHONE, "dark")
    page.goto(judged)
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE[0]
    sentence = page.locator("#changes .sentence").first
    box = sentence.bounding_box()
    assert box is not None
    assert box["y"] + box["height"] < PHONE[1]
    assert "Everything on virtio is 20% slower since pve-qemu-kvm" in sentence.inner_text()
    page.locator("#changes summary").first.click()
    page.locator("#changes .cases a").first.click()
    assert "virtio" in page.get_by_role("heading", level=1).inner_text()
    contrasts = page.evaluate(CONTRAST)
    assert contrasts[0][0] >= 4.5, contrasts[0]


def test_on_paper_it_is_black_on_white_fits_the_sheet_and_has_nothing_to_click(
    judged: str, window: Open
) -> None:
    page = window(PAPER, 1123, "dark")
    page.goto(judged)
    page.emulate_media(media="print")
    assert page.evaluate("document.documentElement.scrollWidth") <= PAPER
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    for gone in (".site nav", "#theme", ".skip"):
        assert not page.locator(gone).is_visible(), gone
    assert page.locator("#changes .sentence").first.is_visible()
    overflowing = page.eval_on_selector_all(
        ".scroll",
        "all => all.filter((one) => one.scrollWidth > one.clientWidth + 1).map((one) => one.id)",
    )
    assert overflowing == []
    assert page.pdf(prefer_css_page_size=True).startswith(b"%PDF")


def test_colours_can_be_chosen_and_stay_on_every_page(instance: Instance, window: Open) -> None:
    page = window(scheme="light")
    page.goto(instance.address)
    back = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(back)
    page.get_by_label("Theme").select_option("dark")
    dark = page.evaluate(back)
    assert dark != light
    for path in paths(instance):
        page.goto(instance.address + path)
        assert page.evaluate(back) == dark, path
        assert page.get_by_label("Theme").input_value() == "dark"
    page.get_by_label("Theme").select_option("")
    assert page.evaluate(back) == light


@pytest.mark.parametrize("steps", YOUNG.values(), ids=YOUNG)
def test_a_young_page_says_what_comes_without_holes_and_without_alarm(
    tmp_path: Path, window: Open, steps: int
) -> None:
    simulation = simulate(tmp_path, cycles=None)
    for _ in range(steps):
        simulation.world.clock.sleep(simulation.worker.step())
    verdicts = VerdictService(results_of(simulation), ()).judge()
    with served(app_of(simulation, verdicts=lambda: verdicts)) as address:
        page = window(*PHONE)
        page.goto(address)
        assert page.locator("#ahead li").count() == 3
        assert page.evaluate("document.documentElement.scrollWidth") <= PHONE[0]
        # No colour of "worse", no sign of trouble, nothing blank.
        assert page.locator("main .note").count() == 0
        assert page.evaluate(EMPTY) == []
        text = page.locator("main").inner_text().lower()
        assert not {"nan", "none yet", "undefined", "error", "no data"} & set(text.split("\n"))

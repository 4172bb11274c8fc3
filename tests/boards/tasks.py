"""Common tasks on the dashboards of the demo, with the number of clicks."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from playwright.sync_api import Browser, Error, Locator, Page

WAIT_MILLISECONDS: Final = 60_000
OVERVIEW: Final = "pvebench-overview"
WALL: Final = "pvebench-wall"
COMPARE: Final = "pvebench-compare"


@dataclass(slots=True)
class Visitor:
    """User on a dashboard.

    Attributes:
        clicks: number of clicks so far.
    """

    page: Page
    clicks: int = field(default=0, init=False)

    def click(self, where: Locator) -> None:
        """Click an element as soon as it exists."""
        where.first.click(timeout=WAIT_MILLISECONDS)
        self.clicks += 1

    def menu(self, board: str) -> None:
        """Open another dashboard by the menu."""
        self.click(self.page.get_by_role("button", name="Storage benchmark"))
        self.click(self.page.locator(f"a[href*='/d/{board}/']"))
        self.is_on(board)

    def last_year(self) -> None:
        """Show the last year."""
        self.click(self.page.get_by_role("link", name="Last year"))
        self.page.wait_for_url(lambda url: "from=now-1y" in url, timeout=WAIT_MILLISECONDS)

    def reads(self, panel: str, pattern: str) -> None:
        """Wait until the panel with this title shows a text.

        Raises:
            Error: it did not within the time limit.
        """
        section = self.page.get_by_test_id(f"data-testid Panel header {panel}")
        match = section.filter(has_text=re.compile(pattern))
        match.first.wait_for(timeout=WAIT_MILLISECONDS)

    def is_on(self, board: str, **variables: str) -> None:
        """Wait until another dashboard opens, with these values of its variables.

        Raises:
            Error: it did not within the time limit.
        """
        parts = [f"var-{name}={value}" for name, value in variables.items()]
        self.page.wait_for_url(
            lambda url: f"/d/{board}" in url and all(part in url for part in parts),
            timeout=WAIT_MILLISECONDS,
        )

    def choose(self, variable: str, value: str) -> None:
        """Select a value of the variable with this label."""
        label = f"data-testid Dashboard template variables submenu Label {variable}"
        self.click(self.page.get_by_test_id(label).locator("xpath=following-sibling::*"))
        self.click(self.page.get_by_role("option", name=value))

    def compare(self, storage: str, variable: str, value: str) -> None:
        """Compare a storage of the Overview with another one, selected by a variable."""
        self.click(self.page.locator(f"a[href*='var-storage_a={storage}']"))
        self.is_on(COMPARE)
        self.choose(variable, value)
        self.reads("Results by workload", r"\d io/s")


def fastest_for_random_writes(visitor: Visitor) -> None:
    """Which configuration is fastest for random writes on this storage, and is it significant?"""
    visitor.click(visitor.page.locator("a[href*='/d/pvebench-matrix']"))
    visitor.is_on("pvebench-matrix")
    visitor.choose("Workload", "randwrite")
    visitor.reads("Best configuration", r"random write[^\n]* is fastest")


def cost_of_the_upgrade(visitor: Visitor) -> None:
    """Did the last upgrade reduce performance?"""
    visitor.reads("Verdict", r"\d% slower since")


def upgrade_by_menu(visitor: Visitor) -> None:
    """Which cases did the last upgrade affect?"""
    visitor.menu("pvebench-upgrades")
    visitor.reads("Changed cases", "significant|within noise")


def why_the_wall_is_orange(visitor: Visitor) -> None:
    """Why is the wall orange?"""
    text = re.compile(r"\d% slower since")
    visitor.page.get_by_text(text).first.wait_for(timeout=WAIT_MILLISECONDS)


def which_cases(visitor: Visitor) -> None:
    """Which cases does the open change affect?"""
    visitor.click(visitor.page.locator("a[href*='var-change=']"))
    visitor.is_on("pvebench-upgrades")
    visitor.reads("Cases of open changes", "Slower")


def a_against_b_over_a_year(visitor: Visitor) -> None:
    """How did a configuration and another one of its storage develop over a year?"""
    visitor.click(visitor.page.locator("a[href*='/d/pvebench-compare?'][href*='storage_a=']"))
    visitor.is_on(COMPARE)
    visitor.last_year()
    visitor.reads("Throughput", r"A (read|write)")


def tail_over_a_year(visitor: Visitor) -> None:
    """How did the tail latency of a case develop over a year?"""
    best = "data-testid Panel header Fastest configuration per workload"
    visitor.click(visitor.page.get_by_test_id(best).get_by_text("raw"))
    visitor.click(visitor.page.get_by_text("Case detail"))
    visitor.is_on("pvebench-case")
    visitor.last_year()
    visitor.reads("Completion latency percentiles", r"p99\.9")


def cache_modes_within_a_bus(visitor: Visitor) -> None:
    """Which cache mode is fastest on one bus?"""
    visitor.click(visitor.page.locator("a[href*='/d/pvebench-matrix']"))
    visitor.is_on("pvebench-matrix")
    visitor.reads("Gap to the fastest", r"none[\s\S]*writeback")


def two_environment_periods(visitor: Visitor) -> None:
    """How do two environment periods differ?"""
    visitor.menu("pvebench-upgrades")
    visitor.reads("Compared cases", r"\d")


def next_case(visitor: Visitor) -> None:
    """Which case runs next, and when, by name?"""
    visitor.reads("Node status", r"\dk|M (random|sequential) (read|write)")


def next_case_on_the_wall(visitor: Visitor) -> None:
    """Which case runs next, by name, as the wall shows it?"""
    text = re.compile(r"next: \w+ (random|sequential) (read|write)")
    visitor.page.get_by_text(text).first.wait_for(timeout=WAIT_MILLISECONDS)


def is_it_alive(visitor: Visitor) -> None:
    """Is pvebench running, and when was the last run?"""
    visitor.reads("Latest result", "ago")


def another_storage(visitor: Visitor) -> None:
    """How does this storage compare with another one of its node?"""
    visitor.compare("ceph", "B: storage", "local-zfs")
    visitor.is_on(COMPARE, storage_a="ceph", storage_b="local-zfs")


def another_node(visitor: Visitor) -> None:
    """How does this node's storage compare with another node's?"""
    visitor.compare("local-nvme", "B: node", "pve1")
    visitor.is_on(COMPARE, node_a="pve2", node_b="pve1")


def cost_of_an_operation(visitor: Visitor) -> None:
    """What is the CPU time per I/O of each configuration?"""
    visitor.click(visitor.page.locator("a[href*='/d/pvebench-matrix']"))
    visitor.is_on("pvebench-matrix")
    visitor.reads("All configurations", r"(virtio|scsi), (raw|qcow2)[\s\S]* µs")


TASKS: Final[dict[Callable[[Visitor], None], tuple[str, int]]] = {
    a_against_b_over_a_year: (OVERVIEW, 2),
    tail_over_a_year: (OVERVIEW, 3),
    cache_modes_within_a_bus: (OVERVIEW, 2),
    two_environment_periods: (OVERVIEW, 3),
    next_case: ("pvebench-operations", 0),
    next_case_on_the_wall: (WALL, 0),
    fastest_for_random_writes: (OVERVIEW, 3),
    cost_of_the_upgrade: (OVERVIEW, 0),
    upgrade_by_menu: (OVERVIEW, 3),
    why_the_wall_is_orange: (WALL, 0),
    which_cases: (OVERVIEW, 1),
    is_it_alive: (OVERVIEW, 0),
    another_storage: (OVERVIEW, 3),
    another_node: (OVERVIEW, 3),
    cost_of_an_operation: (OVERVIEW, 1),
}
"""Task -> dashboard where it starts, and the maximum number of clicks."""


def failed_tasks(browser: Browser, grafana: str) -> Iterator[str]:
    """Perform every task; yield those that fail or need too many clicks."""
    for task, (board, limit) in TASKS.items():
        page = browser.new_page(viewport={"width": 1920, "height": 3000})
        page.goto(f"{grafana}/d/{board}", timeout=WAIT_MILLISECONDS)
        visitor = Visitor(page)
        try:
            task(visitor)
        except Error as error:
            yield f"{task.__doc__}: after {visitor.clicks} clicks: {str(error).splitlines()[0]}"
        else:
            print(f"{visitor.clicks} clicks: {task.__doc__}", flush=True)
            if visitor.clicks > limit:
                yield f"{task.__doc__}: {visitor.clicks} clicks"
        page.close()

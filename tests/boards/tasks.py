"""What people come to the boards of the demo for, done as they would, and the clicks counted."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from playwright.sync_api import Browser, Error, Locator, Page

MOST_CLICKS: Final = 3
"""Of a task."""
WAIT_MILLISECONDS: Final = 60_000
OVERVIEW: Final = "pvebench-overview"
WALL: Final = "pvebench-wall"
COMPARE: Final = "pvebench-compare"


@dataclass(slots=True)
class Visitor:
    """Somebody with a mouse, on a board.

    Attributes:
        clicks: so many until now.
    """

    page: Page
    clicks: int = field(default=0, init=False)

    def click(self, where: Locator) -> None:
        """Click on what is there, once it is."""
        where.first.click(timeout=WAIT_MILLISECONDS)
        self.clicks += 1

    def menu(self, board: str) -> None:
        """Go to another board by the menu that every board has."""
        self.click(self.page.get_by_role("button", name="Storage benchmark"))
        self.click(self.page.locator(f"a[href*='/d/{board}/']"))
        self.is_on(board)

    def reads(self, panel: str, pattern: str) -> None:
        """Wait until a panel, by its title, says something.

        Raises:
            Error: it never does.
        """
        section = self.page.get_by_test_id(f"data-testid Panel header {panel}")
        wanted = section.filter(has_text=re.compile(pattern))
        wanted.first.wait_for(timeout=WAIT_MILLISECONDS)

    def is_on(self, board: str, **variables: str) -> None:
        """Wait until another board is shown, with these values of its variables.

        Raises:
            Error: it never is.
        """
        wanted = [f"var-{name}={value}" for name, value in variables.items()]
        self.page.wait_for_url(
            lambda url: f"/d/{board}" in url and all(one in url for one in wanted),
            timeout=WAIT_MILLISECONDS,
        )

    def choose(self, variable: str, value: str) -> None:
        """Choose a value of a variable, by its label."""
        label = f"data-testid Dashboard template variables submenu Label {variable}"
        self.click(self.page.get_by_test_id(label).locator("xpath=following-sibling::*"))
        self.click(self.page.get_by_role("option", name=value))

    def compare(self, storage: str, variable: str, value: str) -> None:
        """Compare a storage of the Overview with another, chosen by one variable."""
        self.click(self.page.locator(f"a[href*='var-storage_a={storage}']"))
        self.is_on(COMPARE)
        self.choose(variable, value)
        self.reads("Results by workload", r"\d io/s")


def fastest_for_random_writes(one: Visitor) -> None:
    """Which setting is the fastest for random writes on this storage, and is that real?"""
    one.click(one.page.locator("a[href*='/d/pvebench-matrix']"))
    one.is_on("pvebench-matrix")
    one.choose("Workload", "randwrite")
    one.reads("Best configuration", r"random write[^\n]* is fastest")


def cost_of_the_upgrade(one: Visitor) -> None:
    """Did the last upgrade cost anything?"""
    one.reads("Verdict", r"\d% slower since")


def upgrade_by_menu(one: Visitor) -> None:
    """Did the last upgrade cost anything, case by case?"""
    one.menu("pvebench-upgrades")
    one.reads("Changed cases", "significant|within noise")


def why_the_wall_is_orange(one: Visitor) -> None:
    """Why is the wall orange?"""
    one.reads("Verdict", r"\d% slower since")


def which_cases(one: Visitor) -> None:
    """Which cases are it that the sentence means?"""
    one.click(one.page.locator("a[href*='var-change=']"))
    one.is_on("pvebench-regressions")
    one.reads("Cases", "Slower")


def is_it_alive(one: Visitor) -> None:
    """Is the bench alive, and when was the last run?"""
    one.reads("Latest result", "ago")


def another_storage(one: Visitor) -> None:
    """How does this storage compare with another of its node?"""
    one.compare("ceph", "B: storage", "local-zfs")
    one.is_on(COMPARE, storage_a="ceph", storage_b="local-zfs")


def another_node(one: Visitor) -> None:
    """How does this node's storage compare with that of another node?"""
    one.compare("local-nvme", "B: node", "pve1")
    one.is_on(COMPARE, node_a="pve2", node_b="pve1")


def cost_of_an_operation(one: Visitor) -> None:
    """What does an I/O cost in CPU, by setting?"""
    one.menu("pvebench-cpu")
    one.reads("CPU time per I/O, lowest first", r"(virtio|scsi), (raw|qcow2)")


TASKS: Final[dict[Callable[[Visitor], None], str]] = {
    fastest_for_random_writes: OVERVIEW,
    cost_of_the_upgrade: OVERVIEW,
    upgrade_by_menu: OVERVIEW,
    why_the_wall_is_orange: WALL,
    which_cases: OVERVIEW,
    is_it_alive: OVERVIEW,
    another_storage: OVERVIEW,
    another_node: OVERVIEW,
    cost_of_an_operation: OVERVIEW,
}
"""Task -> the board on which somebody has the question."""


def failed_tasks(browser: Browser, grafana: str) -> Iterator[str]:
    """Do every task; yield those that fail, or take too many clicks."""
    for task, board in TASKS.items():
        page = browser.new_page(viewport={"width": 1920, "height": 3000})
        page.goto(f"{grafana}/d/{board}")
        one = Visitor(page)
        try:
            task(one)
        except Error as error:
            yield f"{task.__doc__}: after {one.clicks} clicks: {str(error).splitlines()[0]}"
        else:
            print(f"{one.clicks} clicks: {task.__doc__}", flush=True)
            if one.clicks > MOST_CLICKS:
                yield f"{task.__doc__}: {one.clicks} clicks"
        page.close()

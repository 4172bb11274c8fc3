"""The boards on the first day: asked as Grafana asks, of a real Prometheus, on young stores.

What was seen in a Grafana 12.4 is the witness: range queries whose step is longer than the history
answered nothing, an empty variable in `@ $before` was an error, and the text for "nothing" took the
colour of the lowest step, which is that of worse.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from typing import Any

import pytest

from testing.boards import (
    GRAYS,
    STANDS_IN,
    chosen,
    dashboards,
    days_of,
    over_time,
    panels,
    step_of,
    substitute,
)
from testing.first_day import YOUNG, young
from testing.prometheus import Prometheus

SHOWS_NOTHING = {"text", "row"}
NEUTRAL = {"text", "transparent"}
NO_WORDS = {"", "none", "no data", "null"}


@pytest.fixture(scope="module", params=list(YOUNG))
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Prometheus]:
    with young(tmp_path_factory.mktemp("young"), request.param) as server:
        yield server


def answers(
    server: Prometheus, board: dict[str, Any]
) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """What every query of a board answers, by panel and letter; a refused one fails the test."""
    values = chosen(server, board, every=False)
    found = {}
    for panel in panels(board):
        days = days_of(panel, board["time"]["from"].removeprefix("now-"))
        step = step_of(panel, days)
        asked = values | over_time(panel, days)
        for target in panel.get("targets", []):
            expression = substitute(target["expr"], asked)
            if target.get("range"):
                # Grafana begins and ends at whole steps.
                end = time.time() // step * step
                found[panel["title"], target["refId"]] = server.query_range(
                    expression, days=days, step=step, end=end
                )
            else:
                found[panel["title"], target["refId"]] = server.query(expression)
    return found


FIRST_SEEN = {
    "pvebench-wall": ("Verdict", "Details", "Clock", "Case 1", "Cases", "Activity"),
    "pvebench-overview": ("Verdict", "Storage summary", "Cases", "Latest result"),
    "pvebench-matrix": ("IOPS", "Gap to the fastest", "All configurations"),
    "pvebench-case": ("Case", "Latest run", "Runs by outcome"),
    "pvebench-operations": ("Node status", "Runs by outcome", "Latest result"),
    "pvebench-upgrades": ("Environments",),
    "pvebench-compare": ("B against A",),
}
"""Panels that say something from the first good run on, at least one of their queries."""
FROM_THE_START = ("Verdict", "Clock", "Node status")
"""Those of them that say something of an empty store too."""


@pytest.mark.parametrize("board", dashboards(), ids=lambda board: str(board["uid"]))
def test_a_young_store_is_reported_as_far_as_it_goes_and_nothing_is_refused(
    server: Prometheus, board: dict[str, Any]
) -> None:
    found = answers(server, board)
    strange = [
        (where, entry["metric"])
        for where, entries in found.items()
        for entry in entries
        for _, value in entry.get("values") or [entry["value"]]
        if not math.isfinite(float(value))
    ]
    assert strange == []
    for annotation in board["annotations"]["list"]:
        server.query(substitute(annotation["expr"], chosen(server, board, every=True)))
    measured = bool(server.query("pvebench_iops"))
    titles = [
        title for title in FIRST_SEEN.get(board["uid"], ()) if measured or title in FROM_THE_START
    ]
    if measured and board["uid"].startswith("pvebench-wall"):
        # Whatever was measured first has a tile.
        assert any(found[f"Case {slot}", ref] for slot in "1234" for ref in "AB")
        titles = [title for title in titles if title != "Case 1"]
    silent = [
        title
        for title in titles
        if not any(entries for (panel, _), entries in found.items() if panel == title)
    ]
    assert silent == []
    # What stands for a missing value is not shown where names are: Grafana leaves the panel blank.
    names = {
        one["title"] for one in panels(board) if one.get("options", {}).get("textMode") == "name"
    }
    told = {title for (title, _), entries in found.items() if entries}
    assert names <= told


@pytest.mark.parametrize("board", dashboards(), ids=lambda board: str(board["uid"]))
def test_where_grafana_would_show_its_own_words_something_of_ours_is_answered(
    server: Prometheus, board: dict[str, Any]
) -> None:
    """Witness: make boards-test on a young store, a Grafana 12.4.0.

    It said "Data does not have a time field" of a timeline and "No data" of a heatmap whatever
    their `noValue`, and of a table of several empty answers nothing but a header.
    """
    values = chosen(server, board, every=False)
    for panel in panels(board):
        targets = [one for one in panel.get("targets", []) if one["refId"] != GRAYS]
        grid = "groupingToMatrix" in str(panel.get("transformations")) and "disk" in str(targets)
        several = panel["type"] == "table" and len(targets) > 1
        if several or grid or panel["type"] in {"state-timeline", "heatmap"}:
            # Of this moment: a bar over a day begins within two minutes, and nobody waits here.
            told = [server.query(substitute(target["expr"], values)) for target in targets]
            assert any(told), panel["title"]


@pytest.mark.parametrize("board", dashboards(), ids=lambda board: str(board["uid"]))
def test_a_timeline_has_a_row_before_its_first_step_is_over(
    server: Prometheus, board: dict[str, Any]
) -> None:
    """Seen in a Grafana 12.4, minutes after a start: "Data does not have a time field"."""
    found = answers(server, board)
    for panel in panels(board):
        if panel["type"] == "state-timeline":
            assert found[panel["title"], "A"] or found[panel["title"], "Z"], panel["title"]


def board_of(uid: str) -> dict[str, Any]:
    return next(one for one in dashboards() if one["uid"] == uid)


def test_the_only_setting_that_was_measured_is_not_called_the_fastest(server: Prometheus) -> None:
    found = answers(server, board_of("pvebench-matrix"))
    settings = {one["metric"]["scenario"] for one in found["All configurations", "A"]}
    codes = {float(one["value"][1]) for one in found["All configurations", "B"]}
    assert 1001 not in codes or len(settings) > 1
    only = len(settings) == 1 and 1011 not in codes  # a result in host memory is not ranked
    assert bool(found["Best configuration", "C"]) == (1007 in codes) == only


def test_none_is_called_the_fastest_while_others_have_too_few_runs(server: Prometheus) -> None:
    """As the own page says it: it "shows the most"."""
    found = answers(server, board_of("pvebench-matrix"))
    codes = {float(one["value"][1]) for one in found["All configurations", "B"]}
    assert not {1001, 1003} <= codes
    assert (1008 in codes) == (1003 in codes) == bool(found["Best configuration", "D"])


def test_no_level_is_drawn_as_that_before_an_upgrade_where_both_sides_are_one_moment(
    server: Prometheus,
) -> None:
    board = board_of("pvebench-upgrades")
    title = "Throughput relative to the previous environment"
    (panel,) = (one for one in panels(board) if one["title"] == title)
    now, later = f"{time.time():.0f}", f"{time.time() + 1:.0f}"
    values = chosen(server, board, every=True) | {"before": now}
    one, two = (
        server.query(substitute(panel["targets"][0]["expr"], values | {"after": after}))
        for after in (now, later)
    )
    assert one == []
    assert bool(two) == bool(server.query("pvebench_iops"))


@pytest.mark.parametrize("missing", ["", "a", "b"])
def test_a_workload_of_one_side_only_is_named_in_the_comparison(
    server: Prometheus, request: pytest.FixtureRequest, missing: str
) -> None:
    board = board_of("pvebench-compare")
    nothing = {missing: "was-never-measured"} if missing else {}
    values = chosen(server, board, every=False) | nothing
    (panel,) = (one for one in panels(board) if one["title"] == "Results by workload")
    asked = {one["refId"]: substitute(one["expr"], values) for one in panel["targets"]}

    def measured(side: str) -> set[str]:
        where = f'node="{values[f"node_{side}"]}",scenario="{values[side]}"'
        return workloads(server.query(f"pvebench_iops{{{where}}}"))

    sides = measured("a"), measured("b")
    assert [bool(side) for side in sides] == [
        bool(server.query("pvebench_iops")) and missing != side for side in "ab"
    ]
    assert any(sides) or request.node.callspec.params["server"] != "first-day"
    assert (workloads(server.query(asked["A"])), workloads(server.query(asked["B"]))) == sides
    # The query before the text of an empty table names the workloads.
    named = server.query(list(asked.values())[list(asked).index(STANDS_IN) - 1])
    assert workloads(named) == sides[0] | sides[1]
    assert all(one["metric"]["description"] for one in named)


def workloads(found: list[dict[str, Any]]) -> set[str]:
    return {one["metric"]["workload"] for one in found}


def test_an_empty_chart_is_no_axis_without_a_line(server: Prometheus) -> None:
    """Seen in a Grafana 12.4: the zero that keeps the axis is enough to hide the words."""
    found = answers(server, board_of("pvebench-case"))
    title = "Throughput, baseline and noise"
    assert found[title, "A"] or not found[title, "F"]


@pytest.mark.parametrize("board", dashboards(), ids=lambda board: str(board["uid"]))
def test_a_panel_without_an_answer_says_so_in_words_and_without_a_colour(
    board: dict[str, Any],
) -> None:
    for panel in panels(board):
        if panel["type"] in SHOWS_NOTHING:
            continue
        defaults = panel["fieldConfig"]["defaults"]
        assert defaults.get("noValue", "").lower() not in NO_WORDS, (panel["title"], "has no words")
        if panel["type"] == "stat":
            special = [one for one in defaults["mappings"] if one["type"] == "special"]
            assert special, panel["title"]
            assert {one["options"]["result"]["color"] for one in special} <= NEUTRAL


def test_no_link_carries_variables_that_its_target_reads_otherwise() -> None:
    for board in dashboards():
        for link in board.get("links", []):
            itself = f"/d/{board['uid']}?" in link.get("url", "")
            assert itself == bool(link.get("includeVars")), (board["uid"], link["title"])


def test_the_way_to_the_other_boards_is_in_sight() -> None:
    """Seen in a Grafana 12.4: with a `placement`, links and switches hide behind a "+ 3"."""
    for board in dashboards():
        shown = [*board.get("links", []), *board["annotations"]["list"]]
        assert not [one for one in shown if "placement" in one], board["uid"]

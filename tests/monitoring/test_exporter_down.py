"""Boards whose exporter has stopped: asked as Grafana asks, of a real Prometheus."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from typing import Any

import pytest

from testing.boards import GRAYS, chosen, dashboards, panels, substitute
from testing.first_day import young
from testing.prometheus import Prometheus

FOR_SURE = 200
"""Seconds after a failed scrape, when it is not the only one."""
Answers = dict[tuple[str, str, str], list[dict[str, str]]]
AFTER_ONE: Answers = {}
"""Answers after a failed scrape."""
SAID = ("Status", "Verdict", "Details")
"""Panels of which each board has one: whether what it shows is current."""
RECENT = "last_over_time(pvebench_exposition_timestamp_seconds[3m])"
OF_THE_PAST = {"timeseries", "state-timeline", "heatmap"}
"""Types of panels that show the times of their values."""
EVERY_FIELD = {"id": "byRegexp", "options": "/.*/"}
OF_THE_PRESENT = {*SAID, "Activity", "Node status", "Waiting for", "Firing alerts", "Clock"}
"""Panels that do not hold what is no longer known."""


def answers(server: Prometheus, moment: float) -> Answers:
    """Return the labels that each instant query answers, by board, panel and letter."""
    found: Answers = {}
    for board in dashboards():
        values = chosen(server, board, every=False)
        for panel in panels(board):
            for target in panel.get("targets", []):
                if target.get("instant"):
                    some = server.query(substitute(target["expr"], values), at=moment)
                    where = (board["uid"], panel["title"], target["refId"])
                    # Two panels of a wall may have one title.
                    found.setdefault(where, []).extend(one["metric"] for one in some)
    return found


@pytest.fixture(scope="module")
def down(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Prometheus, Answers, Answers]]:
    """Give a Prometheus whose exporter has stopped, with the answers before and later."""
    alive: Answers = {}

    def remember(server: Prometheus) -> None:
        alive.update(answers(server, time.time()))

    directory = tmp_path_factory.mktemp("down")
    with young(directory, "first-day", past=True, before_stop=remember) as server:
        stopped = time.time()
        AFTER_ONE.update(answers(server, stopped))
        yield server, alive, answers(server, stopped + FOR_SURE)


@pytest.mark.parametrize("board", dashboards(), ids=lambda board: str(board["uid"]))
def test_a_board_says_first_since_when_the_exporter_is_silent_and_nothing_else(
    down: tuple[Prometheus, Answers, Answers], board: dict[str, Any]
) -> None:
    server, alive, silent = down
    first = board["panels"][0]
    assert first["title"] in SAID
    letters = [target["refId"] for target in first["targets"]]
    said = {ref: silent[board["uid"], first["title"], ref] for ref in letters}
    sentences = [(ref, one) for ref, some in said.items() for one in some]
    ((ref, labels),) = sentences
    (target,) = (one for one in first["targets"] if one["refId"] == ref)
    assert "has not answered since {{time}}" in target["legendFormat"]
    assert re.fullmatch(r"Last measured \d{4}(-\d\d){2} \d\d:\d\d UTC; ", labels["measured"])
    told = time.strptime(labels["time"], "%Y-%m-%d %H:%M UTC")
    assert 0 <= time.mktime(time.gmtime()) - time.mktime(told) < 600
    asked = substitute(target["expr"], chosen(server, board, every=False))
    (value,) = server.query(asked, at=time.time() + FOR_SURE)
    colors = first["fieldConfig"]["defaults"]["thresholds"]["steps"]
    limits = [one for one in colors if (one["value"] or 0) <= float(value["value"][1])]
    assert limits[-1]["color"] == "dark-orange"
    assert not alive[board["uid"], first["title"], ref]


@pytest.mark.parametrize("board", dashboards(), ids=lambda board: str(board["uid"]))
def test_the_last_values_are_held_and_no_panel_says_that_nothing_is_there(
    down: tuple[Prometheus, Answers, Answers], board: dict[str, Any]
) -> None:
    _, alive, silent = down
    held = {
        where: found
        for where, found in alive.items()
        if where[0] == board["uid"] and where[1] not in OF_THE_PRESENT and where[2] != GRAYS
    }
    assert any(held.values())
    kinds = {panel["title"]: panel["type"] for panel in panels(board)}

    def set_of(where: tuple[str, str, str], found: list[dict[str, str]]) -> set[str]:
        # A timeline's row without a bar belongs to the first minutes.
        fallback = kinds[where[1]] == "state-timeline" and where[2] == "Z"
        return set() if fallback else {str(sorted(o.items())) for o in found}

    lost = {
        where: found ^ now
        for where, some in held.items()
        if (found := set_of(where, some)) != (now := set_of(where, silent[where]))
    }
    assert lost == {}


def test_held_values_are_gray(down: tuple[Prometheus, Answers, Answers]) -> None:
    """Witness: `extractConfigFromQuery` of grafana/grafana, public/app/features/transformers."""
    _, alive, silent = down
    grays = [where for where in alive if where[2] == GRAYS]
    assert {where[0] for where in grays} == {one["uid"] for one in dashboards()}
    assert not [where for where in grays if alive[where]]
    assert {one["color"] for where in grays for one in silent[where]} == {"#8E8E8E"}


@pytest.mark.parametrize("board", dashboards(), ids=lambda board: str(board["uid"]))
def test_every_panel_that_holds_values_grays_them_first(board: dict[str, Any]) -> None:
    """Witness: `applyTo` of grafana/grafana, its transformation's editor; without: numbers only."""
    for panel in panels(board):
        letters = {target["refId"] for target in panel.get("targets", [])}
        at_once = [one["expr"] for one in panel.get("targets", []) if one.get("instant")]
        holds = panel["type"] not in OF_THE_PAST and any("$held" in one for one in at_once)
        # Others name the moment since which they hold.
        dated = any(f"unless on (job, instance) {RECENT}" in one for one in at_once)
        assert (GRAYS in letters) == (holds and not dated), panel["title"]
        first = next(iter(panel.get("transformations", [])), {}).get("options", {})
        assert (first.get("configRefId") == GRAYS) == (GRAYS in letters), panel["title"]
        assert GRAYS not in letters or first["applyTo"] == EVERY_FIELD, panel["title"]
        assert not (panel["title"] in SAID and GRAYS in letters)  # its color says so


@pytest.mark.parametrize("board", dashboards(), ids=lambda board: str(board["uid"]))
def test_no_color_hides_the_gray_of_held_values(board: dict[str, Any]) -> None:
    """Witness: `getDisplayProcessor` of grafana/grafana, packages/grafana-data/src/field.

    It asks the mappings for a color before the field; overrides follow the transformations.
    """
    for panel in panels(board):
        if not any(target["refId"] == GRAYS for target in panel.get("targets", [])):
            continue
        config = panel["fieldConfig"]
        looks = [{one["id"]: one["value"] for one in o["properties"]} for o in config["overrides"]]
        looks = [look for look in looks if "custom.cellOptions" not in look]  # trends and links
        assert not [look for look in looks if "color" in look], panel["title"]
        for mapping in [one for look in (config["defaults"], *looks) for one in shown(look)]:
            assert mapping["type"] == "special" or "color" not in str(mapping), panel["title"]


@pytest.mark.parametrize("board", dashboards(), ids=lambda board: str(board["uid"]))
def test_numbers_that_stand_for_words_keep_a_color_of_their_own(board: dict[str, Any]) -> None:
    """A color in thresholds is one only where nothing else colors the panel."""
    for panel in panels(board):
        config = panel.get("fieldConfig", {"overrides": []})
        ids = [{one["id"] for one in override["properties"]} for override in config["overrides"]]
        if any("thresholds" in some for some in ids):
            assert config["defaults"]["color"]["mode"] == "thresholds", panel["title"]


def shown(look: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = look.get("mappings", [])
    return found


def test_one_failed_scrape_changes_no_sentence(down: tuple[Prometheus, Answers, Answers]) -> None:
    _, alive, _ = down
    known = [where for where in alive if where[1] in SAID]
    assert {where: bool(AFTER_ONE[where]) for where in known} == {w: bool(alive[w]) for w in known}


def test_activity_is_unknown_while_the_exporter_is_silent(
    down: tuple[Prometheus, Answers, Answers],
) -> None:
    _, alive, silent = down
    for where in (("pvebench-wall", "Activity", "G"), ("pvebench-operations", "Waiting for", "G")):
        assert (bool(alive[where]), bool(silent[where])) == (False, True)
    assert not silent["pvebench-wall", "Activity", "B"]  # which says that it is alive
    running = ("pvebench-wall", "Activity", "A")
    assert (bool(alive[running]), bool(silent[running])) == (True, False)
    assert silent["pvebench-operations", "Node status", "Z"]
    assert not silent["pvebench-operations", "Waiting for", "Z"]


def test_a_timeline_with_bars_has_no_row_that_says_there_are_none(
    down: tuple[Prometheus, Answers, Answers],
) -> None:
    """Seen in a Grafana 12.4: "no data yet" beside the nodes."""
    server, _, _ = down
    (board,) = (one for one in dashboards() if one["uid"] == "pvebench-operations")
    (states,) = (one for one in panels(board) if one["type"] == "state-timeline")
    asked = {one["refId"]: one["expr"] for one in states["targets"]}
    values = chosen(server, board, every=False) | {"__interval": "1s", "__range": "600s"}
    silent = time.time() + FOR_SURE
    assert server.query_range(substitute(asked["A"], values), days=1 / 144, step=1, end=time.time())
    assert not server.query(substitute(asked["Z"], values), at=silent)

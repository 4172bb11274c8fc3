"""The documents say what the product does: their examples load, their tables are complete."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from pvebench import errors
from pvebench.cli.main import COMMANDS
from pvebench.config import load_pack, load_settings
from pvebench.config.pack_keys import Options
from pvebench.drivers import DRIVERS
from pvebench.service.startup import assignments
from pvebench.verdicts.overall_state import INCONCLUSIVE_EXIT
from pvebench.workloads import TOOLS
from testing.packs import ROOT

DOCS = ROOT / "docs"


def example(page: str, number: int = 0) -> str:
    text = (DOCS / page).read_text("utf-8")
    return re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)[number]


@pytest.mark.lab
def test_the_pack_in_the_documents_is_one(tmp_path: Path) -> None:
    path = tmp_path / "pack.yaml"
    path.write_text(example("packs.md"), "utf-8")
    assert load_pack(path).name == "my-disks"


@pytest.mark.lab
def test_the_settings_in_the_documents_are_some(tmp_path: Path) -> None:
    path = tmp_path / "settings.yaml"
    path.write_text(example("configuration.md"), "utf-8")
    assert load_settings(path).node == "lab"


@pytest.mark.parametrize("driver", DRIVERS)
def test_every_driver_is_explained_beside_the_setting(driver: str) -> None:
    assert re.search(rf"\b{driver}(: |\s+#)", example("configuration.md"))


@pytest.mark.parametrize("option", list(Options.model_fields))
def test_every_option_of_the_disk_is_explained(option: str) -> None:
    rows = [line for line in (DOCS / "packs.md").read_text("utf-8").splitlines() if "| `" in line]
    assert any(f"`{option}`" in row for row in rows)


@pytest.mark.parametrize("tool", sorted(TOOLS))
def test_every_workload_is_explained(tool: str) -> None:
    text = (DOCS / "packs.md").read_text("utf-8")
    assert f"- {tool}:" in text or f"**{tool}**" in text


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_every_command_is_explained(command: str) -> None:
    text = (DOCS / "cli.md").read_text("utf-8")
    assert re.search(rf"^- \[?`pvebench {command}`.*: \w", text, re.MULTILINE)


@pytest.mark.parametrize(
    "board", sorted((ROOT / "grafana/dashboards").glob("*.json")), ids=lambda path: path.stem
)
def test_every_dashboard_is_explained(board: Path) -> None:
    title = json.loads(board.read_text("utf-8"))["title"].removeprefix("Storage benchmark / ")
    rows = re.findall(r"^\| ([^|]+) \|", (DOCS / "dashboards.md").read_text("utf-8"), re.MULTILINE)
    assert title in [name for row in rows for name in row.split(", ")]


def exit_codes() -> set[int]:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type)]
    found = {kind.exit_code for kind in kinds if issubclass(kind, errors.PvebenchError)}
    return found | {INCONCLUSIVE_EXIT}


def test_every_exit_code_is_explained() -> None:
    text = (DOCS / "cli.md").read_text("utf-8")
    told = {int(code) for code in re.findall(r"^\| (\d+) \|", text, re.MULTILINE)}
    assert exit_codes() - {1} <= told


def pages() -> list[Path]:
    return [*ROOT.glob("*.md"), *DOCS.glob("*.md"), *(ROOT / "bench/reports").glob("*.md")]


def anchors(page: Path) -> set[str]:
    """The headings of a page, as GitHub makes anchors of them."""
    text = re.sub(r"```.*?```", "", page.read_text("utf-8"), flags=re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in headings}


@pytest.mark.parametrize("page", pages(), ids=lambda path: path.name)
def test_every_link_leads_to_a_file_of_the_repository_and_a_heading_in_it(page: Path) -> None:
    links = re.findall(r"\]\((?!https?:|mailto:)([^)]+)", page.read_text("utf-8"))
    missing = []
    for link in links:
        name, _, anchor = link.partition("#")
        path = page.parent / name if name else page
        if not path.exists() or (anchor and anchor not in anchors(path)):
            missing.append(link)
    assert missing == []


def test_every_page_has_its_place_on_the_site() -> None:
    """`make site` fails otherwise; it needs the package index, this does not."""
    text = (ROOT / "mkdocs.yml").read_text("utf-8")
    placed = re.findall(r"([\w-]+\.md)", text)
    assert sorted(placed) == sorted(page.name for page in (ROOT / "docs").glob("*.md"))


def dashboards() -> dict[str, set[str]]:
    """Return the titles of the dashboards, each with those of its panels."""
    boards = [
        json.loads(path.read_text("utf-8")) for path in (ROOT / "grafana/dashboards").glob("*.json")
    ]
    return {
        board["title"].removeprefix("Storage benchmark / "): set(
            re.findall(r'"title": "([^"]+)"', json.dumps(board["panels"]))
        )
        for board in boards
    }


def test_the_page_of_the_dashboards_lists_each_of_them() -> None:
    table = (ROOT / "docs/dashboards.md").read_text("utf-8").partition("## Read the panels")[0]
    assert {*re.findall(r"(?m)^\| ([A-Z][^|]*?) \|", table)} - {"Dashboard"} == {*dashboards()}


def test_runbooks_name_dashboards_and_panels_that_exist() -> None:
    text = " ".join((ROOT / "docs/runbooks.md").read_text("utf-8").split())
    boards = dashboards()
    named = {*re.findall(r"(?<![*\w])\*([A-Z][^*]+)\*(?!\*)", text)} - {"Status / Targets"}
    assert named
    assert named <= {*boards}
    panels = re.findall(r'"([A-Z][^"]+)" in \*([^*]+)\*', text)
    panels += [
        (panel, board) for board, panel in re.findall(r'In \*([^*]+)\*, check "([^"]+)"', text)
    ]
    assert len(panels) >= 3
    for panel, board in panels:
        assert panel in boards[board]


EXAMPLES = sorted((ROOT / "docs" / "examples").glob("*.yaml"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_an_example_is_valid_and_has_cases_on_every_node(path: Path) -> None:
    settings = load_settings(path)
    given = assignments(settings)
    assert {entry.node for entry in given} == set(settings.measured_nodes())


def test_there_are_examples() -> None:
    assert EXAMPLES

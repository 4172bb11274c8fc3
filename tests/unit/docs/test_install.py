"""Each way to install begins with the same commands on every page, and there is a way back."""

from __future__ import annotations

import re
from typing import Final

import pytest

from pvebench.drivers.qemu.qemu_hypervisor import INSTALL, TOOLS
from pvebench.guest.build import REQUIRED_TOOLS
from testing.packs import ROOT

PAGES: Final = ("README.md", "docs/quickstart.md", "docs/install.md")
NODE_PAGES: Final = {
    "README.md": "### On a Proxmox VE node",
    "docs/quickstart.md": "## On a Proxmox VE node",
    "docs/install.md": "## A Proxmox VE node",
    "docs/proxmox.md": "## Start on a node",
}
FIRST_SCREEN: Final = 20
"""Lines of a page that a reader sees without scrolling."""
EVERY_DEBIAN: Final = {"apt", "dpkg"}
WAYS: Final = {
    "pipx install": "pipx uninstall pvebench",
    "apt-get install --no-install-recommends ./dist/pvebench_": "apt-get purge pvebench",
    "bash proxmox-lxc.sh --deb": "bash proxmox-lxc.sh --remove",
    "docker compose up": "docker compose down --remove-orphans --volumes",
    "make run": "make clean ALL=1",
}
"""Command of an installation -> the command that removes it."""


def text(page: str) -> str:
    return (ROOT / page).read_text("utf-8")


def first_block(page: str, heading: str) -> str:
    """The first commands below a heading."""
    section = text(page).split(f"\n{heading}\n")[1].partition("\n#" + "# ")[0]
    return re.findall(r"^```console\n(.*?)^```$", section, re.DOTALL | re.MULTILINE)[0]


@pytest.mark.parametrize("page", PAGES)
def test_the_wheel_needs_the_packages_that_pvebench_looks_for(page: str) -> None:
    needed = {"pipx", *TOOLS.values(), *REQUIRED_TOOLS.values()} - EVERY_DEBIAN
    lines = re.findall(rf"^# {INSTALL} (pipx .+)$", text(page), re.MULTILINE)
    assert [set(line.split()) for line in lines] == [needed]


@pytest.mark.parametrize("page", PAGES)
def test_fio_is_named_for_the_cases_that_need_it_on_the_host(page: str) -> None:
    assert "Add `fio` for [host cases](" in " ".join(text(page).split())


@pytest.mark.parametrize("page", PAGES)
def test_the_commands_for_debian_come_after_a_warning_for_proxmox_nodes(page: str) -> None:
    """Debian's QEMU conflicts with a node's own, and apt may remove Proxmox VE."""
    before, command, _ = text(page).partition(f"# {INSTALL} ")
    assert command
    assert "Proxmox VE node" in before
    assert "`pve-qemu-kvm`" in before


@pytest.mark.parametrize("page", NODE_PAGES)
def test_a_node_has_one_beginning_everywhere(page: str) -> None:
    block = first_block(page, NODE_PAGES[page])
    assert block == first_block("docs/install.md", NODE_PAGES["docs/install.md"])
    make, copy, start = block.splitlines()
    assert make.startswith("$ make release ")
    assert "dist/proxmox-lxc.sh" in copy
    assert "bash proxmox-lxc.sh --deb" in start


def test_the_page_begins_with_commands_that_a_reader_can_type_today() -> None:
    page = text("docs/install.md")
    blocks = re.findall(r"^```console\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    targets = re.findall(r"^\$ make ([a-z]+)", blocks[0], re.MULTILINE)
    assert targets == ["run", "release"]
    assert all(re.search(rf"^{target}:", text("Makefile"), re.MULTILINE) for target in targets)
    # What is installed later is what this leaves in dist/.
    assert "pipx install dist/" in page
    assert "./dist/pvebench_" in page


@pytest.mark.parametrize("page", ["README.md", "docs/quickstart.md", "docs/install.md"])
def test_the_first_command_is_on_the_first_screen(page: str) -> None:
    lines = text(page).splitlines()
    assert "```console" in lines[:FIRST_SCREEN]


@pytest.mark.parametrize("way", WAYS)
def test_every_installation_has_a_way_back(way: str) -> None:
    assert any(way in text(page) for page in PAGES)
    assert WAYS[way] in text("docs/uninstall.md")


def headings() -> str:
    pages = [page.read_text("utf-8") for page in sorted((ROOT / "docs").glob("*.md"))]
    return "\n".join(line for page in pages for line in re.findall(r"^#+ .+$", page, re.MULTILINE))


@pytest.mark.parametrize(
    "words", ["kiosk", "wall screen", "existing Grafana", "uninstall", "download", "wear"]
)
def test_the_search_finds_it_in_a_heading(words: str) -> None:
    assert words.lower() in headings().lower()


def test_readme_leads_to_every_page() -> None:
    pages = {page.name for page in (ROOT / "docs").glob("*.md")} - {"index.md"}
    assert pages - set(re.findall(r"\(docs/([a-z-]+\.md)", text("README.md"))) == set()


@pytest.mark.parametrize("page", ["existing-grafana", "wall-screen", "uninstall"])
def test_readme_and_index_lead_to_the_page(page: str) -> None:
    assert f"(docs/{page}.md)" in text("README.md")
    assert f"({page}.md)" in text("docs/index.md")


def test_the_wall_screen_opens_dashboards_that_are_there() -> None:
    uids = set(re.findall(r"/d/([\w-]+)", text("docs/wall-screen.md")))
    boards = "".join(path.read_text("utf-8") for path in (ROOT / "grafana/dashboards").glob("*"))
    assert uids == {"pvebench-wall"}
    assert all(f'"uid": "{uid}"' in boards for uid in uids)

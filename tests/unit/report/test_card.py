"""The card: a PNG that says system, versions, four workloads and the verdict, whatever they are."""

from __future__ import annotations

import io
import itertools
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from PIL import Image

from pvebench.cli.main import run_cli
from pvebench.report.card import (
    HEIGHT,
    THEMES,
    WIDTH,
    Card,
    CardRow,
    Placed,
    card_png,
    make_card,
    plain,
    texts_of,
)
from pvebench.store.live_results import LiveResults, View
from pvebench.verdicts.node_verdicts import Verdicts
from pvebench.verdicts.ranking import of_storage, shown_definitions
from pvebench.verdicts.verdict_updates import VerdictService
from testing import http_client
from testing.changes import START, upgrade
from testing.packs import SMALL, write_pack
from testing.simulated_site import app_of, results_of, served
from testing.simulations import Simulation, simulate
from testing.stores import TemporaryStore

EVIL = "<script>\u202e\x1b[31m" + "W" * 5000 + "\n\U0001f4a9 {{7*7}}"
PACK = SMALL + "  - fio: {rw: write, bs: 1M, iodepth: 8}\n  - fio: {rw: randread, bs: 4k}\n"
FULL = Card(
    where="pve1, local-zfs",
    cpu="AMD EPYC 7302P 16-Core Processor",
    versions="Proxmox VE 9.1.1, kernel 6.17.2-1-pve, QEMU 10.1.2",
    rows=tuple(
        CardRow(
            title=f"4k random read, depth {depth}, 16 jobs",
            default="16,660 IOPS",
            fastest="18,003 IOPS",
            configuration="virtio, raw, cache writeback, iothread 1",
            gap="-7%, noise unknown",
        )
        for depth in (1, 8, 32, 64)
    ),
    verdict="Random read with iothread=1 got 40 % slower with QEMU 10.0.2-4. " * 4,
    date="2026-11-22",
    simulated=True,
)
HOSTILE = Card(
    where=EVIL,
    cpu=EVIL,
    versions=EVIL,
    rows=(CardRow(title=EVIL, default="1", fastest="2", configuration=EVIL, gap=EVIL),) * 4,
    verdict=EVIL,
    date="2026-11-22",
    simulated=True,
)


def measured(directory: Path) -> Simulation:
    simulation = simulate(directory, pack=write_pack(directory, PACK))
    simulation.worker.run()
    return simulation


def card_of(view: View, verdicts: Verdicts, now: datetime, *, anonymous: bool = False) -> Card:
    cases = of_storage(shown_definitions(view))["lab/local"]
    return make_card(view, verdicts, now, cases, anonymous=anonymous)


def box(one: Placed) -> tuple[float, float, float, float]:
    left = one.x if one.anchor == "left" else one.x - one.width
    return left, one.y, left + one.width, one.y + one.size


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("card", [FULL, HOSTILE], ids=["full", "hostile"])
def test_it_is_a_png_of_the_size_that_forums_show_whole(card: Card, theme: str) -> None:
    picture = card_png(card, theme)
    with Image.open(io.BytesIO(picture)) as image:
        image.verify()
        assert (image.format, image.size) == ("PNG", (1200, 630))
        assert image.info == {}
    assert len(picture) < 100_000


@pytest.mark.parametrize("card", [FULL, HOSTILE], ids=["full", "hostile"])
def test_no_text_leaves_the_picture_or_lies_on_another(card: Card) -> None:
    boxes = [(box(one), one.text) for one in texts_of(card) if one.text]
    for (left, top, right, bottom), text in boxes:
        assert left >= 0, text
        assert top >= 0, text
        assert right <= WIDTH, text
        assert bottom <= HEIGHT, text
    for (one, text), (other, second) in itertools.combinations(boxes, 2):
        apart = one[2] <= other[0] or other[2] <= one[0] or one[3] <= other[1] or other[3] <= one[1]
        assert apart, (text, second)


def test_light_and_dark_are_as_readable_as_the_page() -> None:
    def light(colour: tuple[int, ...]) -> float:
        parts = [
            (c / 255 / 12.92) if c <= 10 else ((c / 255 + 0.055) / 1.055) ** 2.4 for c in colour
        ]
        return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]

    backs = []
    for theme in THEMES:
        with Image.open(io.BytesIO(card_png(FULL, theme))) as image:
            colours = image.convert("RGB").getcolors(1 << 20)
        assert colours is not None
        back = max(colours)[1]
        assert isinstance(back, tuple)
        # The headline's, which is drawn bold: the colour furthest from the back.
        contrast = max(
            (max(light(c), light(back)) + 0.05) / (min(light(c), light(back)) + 0.05)
            for _, c in colours
            if isinstance(c, tuple)
        )
        assert contrast > 12
        backs.append(light(back))
    assert backs[0] > 0.9
    assert backs[1] < 0.1


def test_every_text_of_the_card_stands_on_it() -> None:
    said = " ".join(one.text for one in texts_of(FULL))
    rows = FULL.rows[0]
    for text in (FULL.where, FULL.cpu, FULL.versions, FULL.date, rows.title, rows.configuration):
        assert text in said
    assert "Simulated: these numbers are invented." in said
    assert "Simulated" not in " ".join(one.text for one in texts_of(replace(FULL, simulated=False)))


def test_an_emulated_lab_says_so_across_the_card_and_a_device_has_its_place() -> None:
    texts = [*texts_of(replace(FULL, emulated=True, device="990 PRO, serial …1234, ext4, nvme"))]
    (across,) = [one for one in texts if one.text.startswith("Emulated CPU (TCG)")]
    assert across.width > 0.7 * WIDTH
    assert across.y + across.size < HEIGHT
    assert "990 PRO, serial ...1234, ext4, nvme" in [one.text for one in texts]
    assert not any("Emulated" in one.text for one in texts_of(FULL))


def test_what_the_font_has_not_is_no_hole_and_no_control_character() -> None:
    assert plain("a\u2212b \u00d7 4\t\u00b5s\n\x1b[0m \u202e") == "a-b x 4 us ?[0m ?"
    assert len(plain("W" * 10_000)) <= 600


def test_it_says_what_the_page_says(tmp_path: Path) -> None:
    simulation = measured(tmp_path)
    card = card_of(results_of(simulation).now, Verdicts(), simulation.world.clock.now())
    assert card.where == "lab, local"
    assert card.versions.startswith("kernel simulated-1, QEMU ")
    assert card.date == "2026-01-01"
    assert [row.title for row in card.rows] == [
        "Sequential read",
        "1M sequential write, depth 8",
        "4k random read, depth 8",
        "Random write",
    ]
    assert [row.fastest for row in card.rows][0::3] == ["not measured", "not measured"]
    assert card.rows[2].fastest.endswith(" IOPS")
    assert card.rows[2].gap.endswith("noise unknown") or card.rows[2].gap == "is the default"
    assert card.verdict == "No verdict yet. Each case needs 7 runs."


def test_the_name_of_the_node_can_be_left_out_of_verdicts_too(tmp_path: Path) -> None:
    store = TemporaryStore(tmp_path / "pvebench.db", simulated=False)
    store.begin_cycle("c1", node="lab", pack="quick", tier="wall", planned=12)
    upgrade(store, slower=2.0)
    results = LiveResults(store)
    verdicts = VerdictService(results, ()).judge()
    now = START + timedelta(days=40)
    open_card = card_of(results.now, verdicts, now)
    hidden = card_of(results.now, verdicts, now, anonymous=True)
    assert "50% slower since pve-qemu-kvm 9.2.0-2" in hidden.verdict
    assert (open_card.where, open_card.verdict.count("on lab")) == ("lab, local", 1)
    assert all("lab" not in one.text for one in texts_of(hidden))


def test_the_command_writes_it_and_says_what_is_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    simulation = measured(tmp_path)
    simulation.store.close()
    out, state = tmp_path / "card.png", ["--state", str(tmp_path)]
    assert run_cli(["card", *state, "--output", str(out), "--theme", "dark"]) == 0
    with Image.open(out) as image:
        assert image.size == (WIDTH, HEIGHT)
    assert "lab, local" in capsys.readouterr().out
    assert run_cli(["card", *state, "--storage", "lab/none", "--output", str(out)]) == 5
    assert "use one of lab/local" in capsys.readouterr().err
    assert run_cli(["card", *state, "--output", str(tmp_path / "no" / "card.png")]) == 3


def test_the_page_links_to_it_and_refuses_what_it_does_not_know(tmp_path: Path) -> None:
    simulation = measured(tmp_path)
    with served(app_of(simulation)) as where:
        assert 'href="/card.png?storage=lab%2Flocal"' in http_client.get(where).text
        answer = http_client.get(f"{where}/card.png?storage=lab%2Flocal&theme=dark&anonymous=1")
        assert answer.headers["content-type"] == "image/png"
        with Image.open(io.BytesIO(answer.content)) as image:
            assert image.size == (WIDTH, HEIGHT)
        codes = {
            query: http_client.get(f"{where}/card.png?{query}").status_code
            for query in ("storage=x", "theme=red", "anonymous=yes", "size=9", "theme=dark&theme=x")
        }
        assert codes == {
            "storage=x": 404,
            "theme=red": 400,
            "anonymous=yes": 400,
            "size=9": 400,
            "theme=dark&theme=x": 400,
        }


def test_results_that_are_all_excluded_are_not_called_unmeasured(tmp_path: Path) -> None:
    simulation = measured(tmp_path)
    view = results_of(simulation).now
    cases = {
        key: replace(case, options={**case.options, "host_cache": "arc"})
        for key, case in of_storage(shown_definitions(view))["lab/local"].items()
    }
    card = make_card(view, Verdicts(), simulation.world.clock.now(), cases)
    assert [row.fastest for row in card.rows][0::2] == ["not measured", "not ranked"]
    assert card.rows[1].fastest.endswith("/s")  # writes are ranked

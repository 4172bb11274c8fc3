"""The card as a PNG of 1200 × 630 pixels, light or dark, in the font of Pillow.

`texts_of` returns each text with its position; `card_png` only draws them. Every text is truncated
or wrapped to its space, so that a long external name cannot displace another text.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache, partial
from io import BytesIO
from typing import Final, Literal, cast

from PIL import Image, ImageDraw, ImageFont

from pvebench.model.definition import Definition, configuration_text, workload_text
from pvebench.model.units import KIB, MIB
from pvebench.store.live_results import View
from pvebench.verdicts.fastest_text import EMULATED_TEXT, LEAST_JUDGED, gap_text, level_text
from pvebench.verdicts.node_verdicts import Verdicts
from pvebench.verdicts.overall_state import headline, overall_state
from pvebench.verdicts.ranking import Ranking, answers, is_synced

# --- content of the card: an image to share, for example in a forum ---

KINDS: Final = (
    ("read", "Sequential read", MIB, 8),
    ("write", "Sequential write", MIB, 8),
    ("randread", "Random read", 4 * KIB, 32),
    ("randwrite", "Random write", 4 * KIB, 32),
)
"""fio pattern, title of the row without a result, preferred block size and depth, as commonly
compared: SEQ1M Q8T1 and RND4K Q32T1."""
VERSIONS: Final = (("pve", "Proxmox VE"), ("kernel", "kernel"), ("qemu", "QEMU"))
NOT_MEASURED: Final = "not measured"
NOT_RANKED: Final = "not ranked"
"""Only results that the ranking excludes, such as reads from a warm cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CardRow:
    """Row of one workload.

    Attributes:
        default: result of the default configuration; empty if not measured.
        fastest: result of the fastest durable configuration.
        configuration: name of that configuration.
        gap: signed gap of the default configuration to it, and its uncertainty.
    """

    title: str
    default: str = ""
    fastest: str = ""
    configuration: str = ""
    gap: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """All texts of the card; `date` is that of the latest run."""

    where: str
    cpu: str
    versions: str
    rows: tuple[CardRow, ...]
    verdict: str
    date: str
    simulated: bool
    emulated: bool = False
    device: str = ""


def make_card(
    view: View,
    verdicts: Verdicts,
    now: datetime,
    cases: Mapping[str, Definition],
    *,
    anonymous: bool = False,
) -> Card:
    """Return the card of one storage.

    Args:
        cases: key -> case, all of that storage.
        anonymous: omit the names of nodes.
    """
    rankings = answers(view, cases)
    first = next(iter(cases.values()), None)
    node, storage = (first.node, first.storage) if first else ("", "")
    facts = next((period.facts for period in reversed(view.periods) if period.node == node), {})
    return Card(
        where=storage if anonymous else ", ".join(part for part in (node, storage) if part),
        cpu=facts.get("cpu_model", ""),
        device="" if anonymous else view.devices.get(f"{node}/{storage}", ""),
        versions=", ".join(f"{name} {facts[fact]}" for fact, name in VERSIONS if fact in facts),
        rows=tuple(_row(kind, rankings) for kind in KINDS),
        verdict=_verdict(verdicts, anonymous=anonymous),
        date=f"{_until(view, cases, now):%Y-%m-%d}",
        simulated=view.simulated,
        emulated=any(ranking.emulated for ranking in rankings),
    )


def _until(view: View, cases: Mapping[str, Definition], now: datetime) -> datetime:
    """Return the end of the latest run."""
    ends = [view.cases[key].last.finished for key in cases if key in view.cases]
    return max(ends, default=now).astimezone(UTC)


def _row(kind: tuple[str, str, int, int], rankings: Sequence[Ranking]) -> CardRow:
    rw, title, block, depth = kind
    candidates = [
        (ranking, ranking.fastest)
        for ranking in rankings
        if ranking.fastest is not None and ranking.fastest.definition.parameters.get("rw") == rw
    ]
    if not candidates:
        excluded = (place for ranking in rankings for place in ranking.excluded)
        known = any(place.definition.parameters.get("rw") == rw for place in excluded)
        return CardRow(title=title, fastest=NOT_RANKED if known else NOT_MEASURED)
    ranking, first = min(candidates, key=lambda pair: _distance(pair[1].definition, block, depth))
    default = ranking.usual
    return CardRow(
        title=workload_text(first.definition),
        default=level_text(ranking.metric, default.level) if default else "",
        fastest=level_text(ranking.metric, first.level),
        configuration=configuration_text(first.definition),
        gap="" if not default else "is the default" if default is first else gap_text(default),
    )


def _distance(definition: Definition, block: int, depth: int) -> tuple[float, bool, float, str]:
    """Return the distance of a workload from the preferred block size and depth."""
    known = definition.parameters
    sizes = [float(known.get(name, 1) or 1) for name in ("bs", "iodepth", "numjobs")]
    return (
        abs(math.log2(sizes[0] / block)),
        is_synced(definition),
        abs(math.log2(sizes[1] * sizes[2] / depth)),
        definition.workload,
    )


def _verdict(verdicts: Verdicts, *, anonymous: bool) -> str:
    """Return the headline; an image to share names no expected time."""
    if overall_state(verdicts) == "inconclusive":
        return f"No verdict yet. Each case needs {LEAST_JUDGED} runs."
    return headline(verdicts, dated=False, evidence=False, name_nodes=not anonymous)


WIDTH: Final = 1200
HEIGHT: Final = 630
MARGIN: Final = 56
RIGHT: Final = WIDTH - MARGIN
DEFAULT, FASTEST = 690, RIGHT
"""Right edges of the value columns in pixels."""
FIRST_ROW, ROW = 268, 68
MAX_LETTERS: Final = 600
"""Maximum characters of a text before its width is measured: names come from outside."""
ELLIPSIS: Final = "..."
_INSTEAD: Final = str.maketrans(
    {"\N{MINUS SIGN}": "-", "–": "-", "×": "x", "µ": "u", "→": "to", "…": ELLIPSIS}
)
"""Characters missing in the font, and their ASCII replacement."""

Role = Literal["text", "soft", "mark"]
COLORS: Final[dict[str, dict[str, str]]] = {
    "light": {"back": "#ffffff", "text": "#1b2127", "soft": "#505a64", "mark": "#8f4100"},
    "dark": {"back": "#101418", "text": "#e8ecf0", "soft": "#aab4be", "mark": "#ffb26b"},
}
"""Colors of the web UI."""
EDGE: Final = {"light": "#c3cad1", "dark": "#434d57"}
THEMES: Final = tuple(COLORS)


@dataclass(frozen=True, slots=True)
class Placed:
    """A text and its position.

    Attributes:
        x: its left edge, or its right edge if `anchor` is `right`.
        y: its top.
        bold: drawn with a stroke, because the font has only one weight.
    """

    text: str
    x: int
    y: int
    size: int
    role: Role = "text"
    anchor: Literal["left", "right"] = "left"
    bold: bool = False

    @property
    def width(self) -> float:
        """Width in pixels."""
        return _font(self.size).getlength(self.text)


def card_png(card: Card, theme: str = "light") -> bytes:
    """Return the card as a PNG. `theme` is one of THEMES."""
    colors = COLORS[theme]
    image = Image.new("RGB", (WIDTH, HEIGHT), colors["back"])
    pen = ImageDraw.Draw(image)
    for y in (FIRST_ROW - 8, FIRST_ROW + len(card.rows) * ROW - 8):
        pen.line([(MARGIN, y), (RIGHT, y)], fill=EDGE[theme], width=2)
    for item in texts_of(card):
        color = colors[item.role]
        pen.text(
            (item.x, item.y),
            item.text,
            font=_font(item.size),
            fill=color,
            anchor="la" if item.anchor == "left" else "ra",
            stroke_width=0.6 if item.bold else 0,
            stroke_fill=color,
        )
    with BytesIO() as file:
        image.quantize(64).save(file, "PNG", optimize=True)
        return file.getvalue()


def texts_of(card: Card) -> Iterator[Placed]:
    """Yield every text of the card with its position."""
    yield Placed("pvebench", MARGIN, 40, 26, "soft")
    yield Placed(f"measured until {card.date}", RIGHT, 40, 26, "soft", "right")
    yield Placed(
        fitted(card.where or "no results yet", 52, RIGHT - MARGIN), MARGIN, 78, 52, bold=True
    )
    yield Placed(fitted(card.cpu or "CPU unknown", 27, RIGHT - MARGIN), MARGIN, 146, 27)
    yield Placed(fitted(card.versions, 27, RIGHT - MARGIN), MARGIN, 182, 27, "soft")
    yield Placed(fitted(card.device, 22, DEFAULT - MARGIN - 100), MARGIN, 226, 22, "soft")
    yield Placed("default", DEFAULT, 228, 22, "soft", "right")
    yield Placed("highest durable", FASTEST, 228, 22, "soft", "right")
    for number, row in enumerate(card.rows):
        yield from _draw_row(row, FIRST_ROW + number * ROW)
    if card.simulated:
        yield Placed("Simulated: these numbers are invented.", 200, 40, 26, "mark")
    if card.emulated:
        yield Placed(fitted(EMULATED_TEXT, 30, RIGHT - MARGIN), MARGIN, HEIGHT - 46, 30, "mark")
    top = FIRST_ROW + len(card.rows) * ROW + 4
    for number, line in enumerate(broken(card.verdict, 23, RIGHT - MARGIN, lines=2)):
        yield Placed(line, MARGIN, top + number * 31, 23)


def _draw_row(row: CardRow, y: int) -> Iterator[Placed]:
    yield Placed(fitted(row.title, 24, 445), MARGIN, y + 6, 24)
    yield Placed(row.default or "-", DEFAULT, y, 30, anchor="right")
    yield Placed(fitted(row.gap, 20, 220), DEFAULT, y + 36, 20, "soft", "right")
    yield Placed(row.fastest, FASTEST, y, 30, anchor="right", bold=True)
    configuration = fitted(row.configuration, 19, FASTEST - DEFAULT - 20)
    yield Placed(configuration, FASTEST, y + 36, 19, "soft", "right")


@lru_cache
def _font(size: int) -> ImageFont.FreeTypeFont:
    # Pillow's wheels have FreeType; without it this raises an ImportError that names it.
    return cast(ImageFont.FreeTypeFont, ImageFont.load_default(size))


@lru_cache(maxsize=4096)
def _has(letter: str) -> bool:
    font = _font(20)
    known, unknown = font.getmask(letter), font.getmask("\ue000")
    return known.size != unknown.size or bytes(known) != bytes(unknown)


def plain(text: str) -> str:
    """Return a text on one line, limited in length, with the characters of the font only."""
    line = " ".join(text[:MAX_LETTERS].translate(_INSTEAD).split())
    return "".join(letter if letter.isprintable() and _has(letter) else "?" for letter in line)


def fitted(text: str, size: int, width: float) -> str:
    """Return a text of at most `width` pixels, truncated if necessary."""
    text = plain(text)
    if _font(size).getlength(text) <= width:
        return text
    too_wide = partial(_too_wide, text, size, width)
    return text[: max(0, bisect_left(range(len(text)), True, key=too_wide) - 1)].rstrip() + ELLIPSIS


def _too_wide(text: str, size: int, width: float, letters: int) -> bool:
    """Return whether the first `letters` and an ellipsis exceed `width` pixels."""
    return _font(size).getlength(text[:letters] + ELLIPSIS) > width


def broken(text: str, size: int, width: float, *, lines: int) -> list[str]:
    """Wrap a text to at most `lines` lines of `width` pixels; truncate the last one."""
    wrapped, words = [""], plain(text).split(" ")
    for index, word in enumerate(words):
        longer = f"{wrapped[-1]} {word}".strip()
        if not wrapped[-1] or _font(size).getlength(longer) <= width:
            wrapped[-1] = longer
        elif len(wrapped) == lines:
            wrapped[-1] = " ".join([wrapped[-1], *words[index:]])
            break
        else:
            wrapped.append(word)
    return [fitted(line, size, width) for line in wrapped]

"""The card as a PNG of 1200 × 630 pixels, light or dark, in the font that Pillow brings along.

`texts_of` says which text stands where; `card_png` only draws that. Every text is cut or broken
to its place, so that no name of somebody else's can push another one off the picture.
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

from pvebench.model.definition import Definition, setting_words, workload_words
from pvebench.model.environment import EnvironmentPeriod
from pvebench.model.units import KIB, MIB
from pvebench.store.current import View
from pvebench.verdicts import Verdicts
from pvebench.verdicts.headline import short_headline, standing
from pvebench.verdicts.ranking import Place, Rank, Ranking
from pvebench.verdicts.summary import (
    level_text,
    milestone_text,
    milestones,
    schedule_of,
    summaries,
    writes_unflushed,
)

# --- What the card says: a picture that people post in a forum. Pure; `card_picture` draws it.

KINDS: Final = (
    ("read", "Sequential read", MIB, 8),
    ("write", "Sequential write", MIB, 8),
    ("randread", "Random read", 4 * KIB, 32),
    ("randwrite", "Random write", 4 * KIB, 32),
)
"""fio's pattern, what the row is called where it is not measured, block size and depth that are
nearest to what the field compares: SEQ1M Q8T1 and RND4K Q32T1."""
VERSIONS: Final = (("pve", "Proxmox VE"), ("kernel", "kernel"), ("qemu", "QEMU"))
NOT_MEASURED: Final = "not measured"


@dataclass(frozen=True, slots=True, kw_only=True)
class CardRow:
    """One workload.

    Attributes:
        usual: what the usual disk reaches; empty where it is not measured.
        fastest: what the fastest setting that keeps data safe reaches; `setting` says which.
        gap: the usual disk against it, with its sign, or that it cannot be known.
    """

    title: str
    usual: str = ""
    fastest: str = ""
    setting: str = ""
    gap: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """Everything that stands on the card, in words; `date` is that of the newest run."""

    where: str
    cpu: str
    versions: str
    rows: tuple[CardRow, ...]
    verdict: str
    date: str
    simulated: bool


def make_card(
    view: View,
    verdicts: Verdicts,
    now: datetime,
    cases: Mapping[str, Definition],
    *,
    anonymous: bool = False,
) -> Card:
    """Return what the card says of one storage.

    Args:
        cases: key -> case, all of that storage.
        anonymous: leave the nodes' names out.
    """
    found = summaries(view, schedule_of(view, now), cases)
    contests = [one.contest for one in found]
    first = next(iter(cases.values()), None)
    node, storage = (first.node, first.storage) if first else ("", "")
    facts = _facts([one for one in view.episodes if one.node == node])
    return Card(
        where=storage if anonymous else ", ".join(part for part in (node, storage) if part),
        cpu=facts.get("cpu_model", ""),
        versions=", ".join(f"{name} {facts[fact]}" for fact, name in VERSIONS if fact in facts),
        rows=tuple(_row(kind, contests) for kind in KINDS),
        verdict=_verdict(view, verdicts, now, anonymous=anonymous),
        date=f"{_until(view, cases, now):%Y-%m-%d}",
        simulated=view.simulated,
    )


def _until(view: View, cases: Mapping[str, Definition], now: datetime) -> datetime:
    """Return when the newest run ended."""
    ends = [view.cases[key].last.finished for key in cases if key in view.cases]
    return max(ends, default=now).astimezone(UTC)


def _facts(episodes: Sequence[EnvironmentPeriod]) -> Mapping[str, str]:
    return episodes[-1].facts if episodes else {}


def _row(kind: tuple[str, str, int, int], contests: Sequence[Ranking]) -> CardRow:
    rw, title, block, depth = kind
    there = [
        (contest, contest.fastest)
        for contest in contests
        if contest.fastest is not None and contest.fastest.definition.parameters.get("rw") == rw
    ]
    if not there:
        return CardRow(title=title, fastest=NOT_MEASURED)
    contest, first = min(there, key=lambda one: _distance(one[1].definition, block, depth))
    usual = contest.usual
    unflushed = " (unflushed)" if writes_unflushed(first.definition) else ""
    return CardRow(
        title=workload_words(first.definition),
        usual=level_text(contest.metric, usual.level) if usual else "",
        fastest=level_text(contest.metric, first.level),
        setting=setting_words(first.definition) + unflushed,
        gap=_gap(usual, first) if usual else "",
    )


def _distance(definition: Definition, block: int, depth: int) -> tuple[float, bool, float, str]:
    """Return how far a workload is from what the field compares."""
    known = definition.parameters
    sizes = [float(known.get(name, 1) or 1) for name in ("bs", "iodepth", "numjobs")]
    synced = any(known.get(name) for name in ("fsync", "fdatasync", "sync"))
    return (
        abs(math.log2(sizes[0] / block)),
        synced,
        abs(math.log2(sizes[1] * sizes[2] / depth)),
        definition.workload,
    )


def _gap(usual: Place, first: Place) -> str:
    if usual is first:
        return "is the usual disk"
    percent = f"{100 * usual.ratio:+.0f} %"
    if usual.rank is Rank.EQUAL:
        return f"{percent}, within noise"
    return percent if usual.rank is Rank.SLOWER else f"{percent}, noise not known"


def _verdict(view: View, verdicts: Verdicts, now: datetime, *, anonymous: bool) -> str:
    """Return the headline, or when there will be a verdict."""
    if standing(verdicts) == "inconclusive":
        upcoming = milestones(view, first_end=None, now=now)
        texts = [milestone_text(one, now) for one in upcoming if not one.reached]
        return f"No verdict yet. {texts[-1]}." if texts else "No verdict yet."
    return short_headline(verdicts, name_nodes=not anonymous)


WIDTH: Final = 1200
HEIGHT: Final = 630
MARGIN: Final = 56
RIGHT: Final = WIDTH - MARGIN
USUAL, FASTEST = 690, RIGHT
"""Where the columns of numbers end."""
FIRST_ROW, ROW = 268, 68
MOST_LETTERS: Final = 600
"""Of a text, before it is measured: titles and names come from outside."""
ELLIPSIS: Final = "..."
_INSTEAD: Final = str.maketrans({"\N{MINUS SIGN}": "-", "–": "-", "×": "x", "µ": "u", "→": "to"})
"""Letters that the font has not, and that have a plain sister."""

Role = Literal["text", "soft", "mark"]
COLOURS: Final[dict[str, dict[str, str]]] = {
    "light": {"back": "#ffffff", "text": "#1b2127", "soft": "#505a64", "mark": "#8f4100"},
    "dark": {"back": "#101418", "text": "#e8ecf0", "soft": "#aab4be", "mark": "#ffb26b"},
}
"""As on the page."""
EDGE: Final = {"light": "#c3cad1", "dark": "#434d57"}
THEMES: Final = tuple(COLOURS)


@dataclass(frozen=True, slots=True)
class Placed:
    """A text and where it stands.

    Attributes:
        x: its left end, or its right one where `anchor` is `right`; y: its top.
        bold: drawn with a stroke: the font has one weight.
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
        """Pixels."""
        return _font(self.size).getlength(self.text)


def card_png(card: Card, theme: str = "light") -> bytes:
    """Return the picture. `theme` is one of THEMES."""
    colours = COLOURS[theme]
    image = Image.new("RGB", (WIDTH, HEIGHT), colours["back"])
    pen = ImageDraw.Draw(image)
    for y in (FIRST_ROW - 8, FIRST_ROW + len(card.rows) * ROW - 8):
        pen.line([(MARGIN, y), (RIGHT, y)], fill=EDGE[theme], width=2)
    for one in texts_of(card):
        colour = colours[one.role]
        pen.text(
            (one.x, one.y),
            one.text,
            font=_font(one.size),
            fill=colour,
            anchor="la" if one.anchor == "left" else "ra",
            stroke_width=0.6 if one.bold else 0,
            stroke_fill=colour,
        )
    with BytesIO() as file:
        image.quantize(64).save(file, "PNG", optimize=True)
        return file.getvalue()


def texts_of(card: Card) -> Iterator[Placed]:
    """Yield every text of the card at its place."""
    yield Placed("pvebench", MARGIN, 40, 26, "soft")
    yield Placed(f"measured until {card.date}", RIGHT, 40, 26, "soft", "right")
    yield Placed(
        fitted(card.where or "no result yet", 52, RIGHT - MARGIN), MARGIN, 78, 52, bold=True
    )
    yield Placed(fitted(card.cpu or "CPU not known", 27, RIGHT - MARGIN), MARGIN, 146, 27)
    yield Placed(fitted(card.versions, 27, RIGHT - MARGIN), MARGIN, 182, 27, "soft")
    yield Placed("the usual disk", USUAL, 228, 22, "soft", "right")
    yield Placed("fastest that keeps data safe", FASTEST, 228, 22, "soft", "right")
    for number, row in enumerate(card.rows):
        yield from _draw_row(row, FIRST_ROW + number * ROW)
    if card.simulated:
        yield Placed("Simulated: these numbers are invented.", 200, 40, 26, "mark")
    top = FIRST_ROW + len(card.rows) * ROW + 4
    for number, line in enumerate(broken(card.verdict, 23, RIGHT - MARGIN, lines=2)):
        yield Placed(line, MARGIN, top + number * 31, 23)


def _draw_row(row: CardRow, y: int) -> Iterator[Placed]:
    yield Placed(fitted(row.title, 24, 445), MARGIN, y + 6, 24)
    yield Placed(row.usual or "-", USUAL, y, 30, anchor="right")
    yield Placed(fitted(row.gap, 20, 220), USUAL, y + 36, 20, "soft", "right")
    yield Placed(row.fastest, FASTEST, y, 30, anchor="right", bold=True)
    setting = fitted(row.setting, 19, FASTEST - USUAL - 20)
    yield Placed(setting, FASTEST, y + 36, 19, "soft", "right")


@lru_cache
def _font(size: int) -> ImageFont.FreeTypeFont:
    # Pillow's wheels have FreeType; without it this is an ImportError that says so.
    return cast(ImageFont.FreeTypeFont, ImageFont.load_default(size))


@lru_cache(maxsize=4096)
def _has(letter: str) -> bool:
    font = _font(20)
    known, unknown = font.getmask(letter), font.getmask("\ue000")
    return known.size != unknown.size or bytes(known) != bytes(unknown)


def plain(text: str) -> str:
    """Return a text in one line, of letters that the font has, and bounded."""
    line = " ".join(text[:MOST_LETTERS].translate(_INSTEAD).split())
    return "".join(one if one.isprintable() and _has(one) else "?" for one in line)


def fitted(text: str, size: int, width: float) -> str:
    """Return a text that is no wider than `width` pixels; its end is cut where it is."""
    text = plain(text)
    if _font(size).getlength(text) <= width:
        return text
    too_wide = partial(_too_wide, text, size, width)
    return text[: max(0, bisect_left(range(len(text)), True, key=too_wide) - 1)].rstrip() + ELLIPSIS


def _too_wide(text: str, size: int, width: float, letters: int) -> bool:
    """Whether so many letters are too many beside what says that there are more."""
    return _font(size).getlength(text[:letters] + ELLIPSIS) > width


def broken(text: str, size: int, width: float, *, lines: int) -> list[str]:
    """Return a text in so many lines at most; the last one is cut where there would be more."""
    found, words = [""], plain(text).split(" ")
    for place, word in enumerate(words):
        longer = f"{found[-1]} {word}".strip()
        if not found[-1] or _font(size).getlength(longer) <= width:
            found[-1] = longer
        elif len(found) == lines:
            found[-1] = " ".join([found[-1], *words[place:]])
            break
        else:
            found.append(word)
    return [fitted(line, size, width) for line in found]

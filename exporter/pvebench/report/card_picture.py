"""The card as a PNG of 1200 × 630 pixels, light or dark, in the font that Pillow brings along.

`texts_of` says which text stands where; `card_png` only draws that. Every text is cut or broken
to its place, so that no name of somebody else's can push another one off the picture.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from io import BytesIO
from typing import Final, Literal, cast

from PIL import Image, ImageDraw, ImageFont

from pvebench.report.card import Card, CardRow

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
        yield from _row(row, FIRST_ROW + number * ROW)
    if card.simulated:
        yield Placed("Simulated: these numbers are invented.", 200, 40, 26, "mark")
    top = FIRST_ROW + len(card.rows) * ROW + 4
    for number, line in enumerate(broken(card.verdict, 23, RIGHT - MARGIN, lines=2)):
        yield Placed(line, MARGIN, top + number * 31, 23)


def _row(row: CardRow, y: int) -> Iterator[Placed]:
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

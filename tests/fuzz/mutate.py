"""A small mutator for every run of the tests: the same inputs each time, no tool needed."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence

_NUMBER = re.compile(rb"-?\d+(?:\.\d+)?")
_TOKENS = (
    *(
        b"0",
        b"-1",
        b"150",
        b"1e999",
        b"1e-999",
        b"NaN",
        b"Infinity",
        b"nan",
        b"inf",
        b"1_0",
        b"9" * 5000,
    ),
    *(
        b"null",
        b"true",
        b'""',
        b"[]",
        b"{}",
        b"\0",
        b"\xff",
        b"\xef\xbb\xbf",
        b'"',
        b"'",
        b"\r",
        b"\n\n",
    ),
    *(b"\xd9\xa1", b"\xc2\xb2", b"\xe2\x80\xa8"),  # an Arabic 1, a superscript 2, a line separator
    *(
        b"[" * 2000,
        b'{"a":' * 2000,
        b"%00",
        b"../",
        b"&a [*a]",
        b"!!bool maybe",
        b"e",
        b".",
        b",",
        b"+++",
    ),
)


def mutations(seeds: Sequence[bytes], *, seed: int, count: int) -> Iterator[bytes]:
    """Yield `count` inputs made of the seeds."""
    rng = random.Random(seed)
    for _ in range(count):
        made = rng.choice(seeds)
        for _ in range(rng.randint(1, 4)):
            made = rng.choice(_WAYS)(made, rng, seeds)
        yield made


def _flip(made: bytes, rng: random.Random, _: Sequence[bytes]) -> bytes:
    at = rng.randrange(len(made) + 1)
    return made[:at] + bytes([rng.randrange(256)]) + made[at + 1 :]


def _cut(made: bytes, rng: random.Random, _: Sequence[bytes]) -> bytes:
    at = rng.randrange(len(made) + 1)
    return made[:at] + made[at + rng.choice((1, 4, 40, 4000)) :]


def _put(made: bytes, rng: random.Random, _: Sequence[bytes]) -> bytes:
    at = rng.randrange(len(made) + 1)
    return made[:at] + rng.choice(_TOKENS) + made[at:]


def _twice(made: bytes, rng: random.Random, _: Sequence[bytes]) -> bytes:
    at, length = rng.randrange(len(made) + 1), rng.choice((1, 10, 100))
    return made[: at + length] + made[at:]


def _renumber(made: bytes, rng: random.Random, _: Sequence[bytes]) -> bytes:
    places = list(_NUMBER.finditer(made))
    if not places:
        return made
    place, other = rng.choice(places), rng.choice(places)[0]
    put = rng.choice((*_TOKENS[:11], other, place[0][::-1], b"-" + place[0]))
    return made[: place.start()] + put + made[place.end() :]


def _splice(made: bytes, rng: random.Random, seeds: Sequence[bytes]) -> bytes:
    other = rng.choice(seeds)
    return made[: rng.randrange(len(made) + 1)] + other[rng.randrange(len(other) + 1) :]


_WAYS = (_flip, _cut, _put, _twice, _renumber, _renumber, _splice)

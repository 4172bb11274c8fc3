"""Samples by seed, how often something holds in them, and the rows of the table."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from testing.noise import Random, stream

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Constant:
    """A constant of pvebench.analysis, in the module that uses it: `MODULE:NAME`."""

    place: str

    def set(self, text: str) -> None:
        """Give it another value.

        Raises:
            SystemExit: there is no such constant.
        """
        name, _, constant = self.place.partition(":")
        module = importlib.import_module(f"pvebench.analysis.{name}")
        if not hasattr(module, constant):
            raise SystemExit(f"pvebench.analysis.{name} has no constant {constant!r}")
        setattr(module, constant, type(getattr(module, constant))(text))

    def get(self) -> str:
        """Return its value."""
        name, _, constant = self.place.partition(":")
        return str(getattr(importlib.import_module(f"pvebench.analysis.{name}"), constant))


@dataclass(frozen=True, slots=True)
class Row:
    """One result, its aim, and whether it is reached; None: only for comparison."""

    name: str
    measured: str
    aim: str = ""
    good: bool | None = None


@dataclass(frozen=True, slots=True)
class Setup:
    """How much is measured.

    Attributes:
        seeds: of all generators.
        series: per question and seed.
        jobs: processes.
        vary: constants of pvebench to measure the real histories with, each with its values.
        public: folder with published histories and their labels.
    """

    seeds: Sequence[int]
    series: int
    jobs: int = 1
    vary: Sequence[tuple[Constant, Sequence[str]]] = ()
    public: Path | None = None

    def each(self, sample: Callable[..., T], *args: Any, share: float = 1.0) -> list[T]:
        """Return `sample(generator, *args)` for every seed and series.

        Samples with equal arguments get equal generators, so that methods see the same series.

        Args:
            sample: a function of a module.
            share: of the usual number of series, for what takes longer.
        """
        count = max(1, round(self.series * share))
        rngs = [stream(seed, *args, n) for seed in self.seeds for n in range(count)]
        return self.over(partial(_call, sample, args), rngs)

    def over(self, work: Callable[[Any], T], items: Iterable[Any]) -> list[T]:
        """Return `work(item)` of every item, in `jobs` processes."""
        if self.jobs == 1:
            return [work(item) for item in items]
        # Forked processes inherit changed constants.
        with ProcessPoolExecutor(self.jobs, get_context("fork")) as pool:
            return list(pool.map(work, items, chunksize=4))


def _call(sample: Callable[..., T], args: Sequence[Any], rng: Random) -> T:
    return sample(rng, *args)


def share_row(
    name: str, hits: Sequence[bool], *, least: float | None = None, most: float | None = None
) -> Row:
    """Return how often something holds, with its aim."""
    share = float(np.mean(hits)) if hits else float("nan")
    text = f"{share:.1%} ({sum(hits)} of {len(hits)})".replace(".0%", "%")
    if least is not None:
        return Row(name, text, f"≥ {least:.0%}", share >= least)
    if most is not None:
        return Row(name, text, f"≤ {most:.0%}" if most else "0", share <= most)
    return Row(name, text)


def number_row(
    name: str,
    value: float,
    unit: str = "",
    *,
    least: float | None = None,
    most: float | None = None,
) -> Row:
    """Return a number with its aim."""
    text = f"{value:.3g}{unit}"
    if least is not None:
        return Row(name, text, f"≥ {least:g}{unit}", value >= least)
    if most is not None:
        return Row(name, text, f"≤ {most:g}{unit}", value <= most)
    return Row(name, text)

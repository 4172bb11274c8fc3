"""What `pvebench serve` and `pvebench run` share: an instance, with its progress on the console."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import click

from pvebench.cli.console import make_console
from pvebench.cli.options import read_settings
from pvebench.cli.progress import ProgressLines, make_progress
from pvebench.errors import CycleIncomplete
from pvebench.model.run import Outcome
from pvebench.model.status import Statuses
from pvebench.service.choice import assignments
from pvebench.service.instance import Request, measure
from pvebench.service.upkeep import Configuration


class Terminal:
    """`service.instance.Screen` on the console."""

    def __init__(self) -> None:
        self._console = make_console()

    def say(self, line: str) -> None:
        """Print a line."""
        self._console.print(line)

    def progress(self, statuses: Statuses) -> ProgressLines:
        """Return the progress that fits the console."""
        return make_progress(self._console, statuses)


def measure_shown(options: dict[str, Any], *, cycles: int | None, web: bool) -> None:
    """Run an instance as the command line asks for it, and say how its cycles went.

    Raises:
        CycleIncomplete: not every case gave a result that is published.
    """
    request = Request(load=_loader(options), config=options["config"], cycles=cycles, web=web)
    conclude(measure(request, Terminal()))


def _loader(options: dict[str, Any]) -> Callable[[], Configuration]:
    """Return what reads settings and packs as the command line asked for them."""
    chosen = {key: options[key] for key in ("scale", "only", "skip")}
    rest = {key: value for key, value in options.items() if key not in chosen}

    def load() -> Configuration:
        settings = read_settings(**rest)
        return Configuration(settings, assignments(settings, **chosen))

    return load


def conclude(outcomes: Sequence[Outcome]) -> None:
    """Say how the cycles went: the last run of each case counts.

    Raises:
        CycleIncomplete: not every case gave a result that is published.
    """
    bad = [str(outcome) for outcome in outcomes if not outcome.good]
    counts = Counter(outcomes)
    # A noisy result is one, and not for that as good as others.
    others = "".join(
        f", {counts[one]} {one}" for one in Outcome if one is not Outcome.OK and counts[one]
    )
    click.echo(f"{counts[Outcome.OK]} of {len(outcomes)} cases ok{others}")
    if bad:
        raise CycleIncomplete(
            f"{len(bad)} of {len(outcomes)} cases gave nothing to publish "
            f"({', '.join(sorted(set(bad)))})",
            next_step="see the reasons: pvebench results --not-ok, with the same --state",
        )

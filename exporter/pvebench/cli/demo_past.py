"""What the demo's page would have told of verdicts in the last months, for its timelines."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from pvebench.config.known_issues import load_known_issues
from pvebench.judging import past_verdicts
from pvebench.metrics.families import Families
from pvebench.metrics.history import Told
from pvebench.metrics.judged import collect_verdicts
from pvebench.results import Results
from pvebench.store import Store

DAY: Final = 86400.0
TOLD_DAYS: Final = 92.0
"""So long before the end verdicts are told; each moment costs seconds of judging."""
USUAL_DAYS: Final = 16.0
RECENT_DAYS: Final = (9.0, 4.0)
"""Also judged: a doubt of one day should not stand for two weeks where people look first."""
AFTER_CHANGE_DAYS: Final = 1.5
"""So long after new software every case has been measured with it, by the demo's pack."""
APART_DAYS: Final = 4.0
"""A usual moment so close to one after new software tells nothing that is looked for."""


def judged_moments(changes: Iterable[float], end: float) -> list[float]:
    """Return when to judge: now and then, and soon after each change of the software.

    Args:
        changes: when environments were first seen, UNIX seconds.
        end: of the simulated year.
    """
    usual = {end - days * USUAL_DAYS * DAY for days in range(1, int(TOLD_DAYS / USUAL_DAYS) + 1)}
    usual |= {end - days * DAY for days in RECENT_DAYS}
    soon = {moment + AFTER_CHANGE_DAYS * DAY for moment in changes}
    # Nodes that are upgraded on one day are judged once, when the last has been.
    soon = {one for one in soon if not any(0 < later - one < DAY for later in soon)}
    usual = {one for one in usual if all(abs(one - new) > APART_DAYS * DAY for new in soon)}
    return sorted(one for one in usual | soon if end - TOLD_DAYS * DAY < one < end)


def told_in_the_past(database: Path, end: float) -> Sequence[Told]:
    """Judge the simulated runs as they were then; a minute of CPU for a whole year."""
    store = Store(database, simulated=True)
    try:
        results = Results(store)
        changes = {episode.started.timestamp() for episode in results.now.episodes}
        told = []
        for moment, verdicts in past_verdicts(
            results, load_known_issues(), judged_moments(changes, end)
        ):
            families = Families()
            collect_verdicts(verdicts, families)
            told.append((moment, families.families()))
        return told
    finally:
        store.close()

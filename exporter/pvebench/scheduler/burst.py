"""After a change of a node's environment: the core tier at once, several rounds in a row."""

from __future__ import annotations

from collections import Counter
from datetime import datetime
from typing import Final

from pvebench.model.run import Run
from pvebench.store import Store

ROUNDS: Final = 5
"""Good runs of each core case after a change; fewer tell little about a difference."""
CORE: Final = "core"
"""Tier of the packs that are run so."""


class Burst:
    """Which cases a change of the environment makes due. Owned by one worker thread.

    Only good runs count: of a VM that did not start half of the environment is unknown.
    """

    def __init__(self, store: Store, node: str) -> None:
        """Read from the store when the environment changed last: a restart forgets nothing."""
        self._digest, self._since = store.present_environment(node)
        self._rounds: Counter[str] = Counter()
        if self._since is not None:
            self._rounds.update(store.good_runs_since(node, self._since))

    @property
    def since(self) -> datetime | None:
        """When the present environment began; None: it is the first one that is known."""
        return self._since

    def note(self, run: Run) -> bool:
        """Count a finished run; return whether it is the first in another environment."""
        if not run.outcome.good:
            return False
        changed = bool(self._digest) and run.environment.digest != self._digest
        self._digest = run.environment.digest
        if changed:
            self._since = run.started
            self._rounds.clear()
        self._rounds[run.case.key] += 1
        return changed

    def wants(self, tier: str, case_key: str) -> bool:
        """Return whether a case of that tier is due because of the last change."""
        return tier == CORE and self._since is not None and self._rounds[case_key] < ROUNDS

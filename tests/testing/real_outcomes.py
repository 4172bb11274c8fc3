"""Which outcomes a real run may have in a test."""

from __future__ import annotations

from typing import Final

from pvebench.model.run import Outcome

MEASURED: Final = frozenset({Outcome.OK, Outcome.NOISY, Outcome.IMPLAUSIBLE})
"""Of a run that was carried out: what else the machine does may make it noisy, and emulation or
a cache on the way implausible. As in JSON: a member equals its word."""

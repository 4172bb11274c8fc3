"""From the store to verdicts: reads what is new, has it judged, keeps what was said.

Judging takes its time: it is done in its own thread, never in a scrape or between runs.
"""

from pvebench.judging.feed import Feed
from pvebench.judging.figures import NUMBERS
from pvebench.judging.keeper import Keeper
from pvebench.judging.past import past_verdicts
from pvebench.judging.verdicts import Verdicts

__all__ = ["NUMBERS", "Feed", "Keeper", "Verdicts", "past_verdicts"]

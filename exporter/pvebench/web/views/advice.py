"""Values for the page of advice."""

from __future__ import annotations

from dataclasses import dataclass

from pvebench.advice.recommendation import recommendations
from pvebench.advice.text import advice_lines, heading
from pvebench.model.definition import configuration_text, workload_text
from pvebench.store import Store
from pvebench.store.current import View
from pvebench.verdicts import Verdicts
from pvebench.verdicts.ranking import NEWEST
from pvebench.web.views import case_url


@dataclass(frozen=True, slots=True)
class AdviceBlock:
    """A recommendation: its sentences, and (name, URL path) of the cases that they rest on."""

    title: str
    lines: tuple[str, ...]
    cases: tuple[tuple[str, str], ...]


def advice_blocks(view: View, store: Store, verdicts: Verdicts) -> tuple[AdviceBlock, ...]:
    """Return the advice for every storage and purpose."""
    return tuple(
        AdviceBlock(
            title=heading(one),
            lines=tuple(advice_lines(one, lambda key: store.runs(case_key=key, limit=2 * NEWEST))),
            cases=tuple(
                (
                    f"{configuration_text(place.definition)}: {workload_text(place.definition)}",
                    case_url(place.key),
                )
                for choice in dict.fromkeys((one.chosen, one.default or one.chosen))
                for place in choice.places
            ),
        )
        for one in recommendations(view, regressions=verdicts.regressions)
    )

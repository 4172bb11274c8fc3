"""Colours, words and units: blue is better, orange is worse, grey is the same or unknown.

Named colours of Grafana only: they fit both themes. The pairs were measured for the three common
kinds of colour blindness; words and signs stand beside every colour.
"""

from __future__ import annotations

from typing import Final

from grafana_foundation_sdk.builders import dashboard as dashboards
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models import dashboard as models

BETTER: Final = "semi-dark-blue"
MAYBE_BETTER: Final = "blue"
SAME: Final = "text"
MAYBE_WORSE: Final = "orange"
WORSE: Final = "dark-orange"
UNKNOWN: Final = "transparent"
CASE_UID: Final = "pvebench-case"


def prop(name: str, value: object) -> models.DynamicConfigValue:
    """Return one property of an override, in the words of schema 37; builders are built."""
    if isinstance(value, list):
        value = [_built(item) for item in value]
    return models.DynamicConfigValue(id_val=name, value=_built(value))


def _built(value: object) -> object:
    return value.build() if isinstance(value, Builder) else value


def state_words() -> list[models.ValueMapping]:
    """Return the words of `pvebench_change_state`."""
    return values(
        {
            "-2": ("Slower", WORSE),
            "-1": ("Maybe slower", MAYBE_WORSE),
            "0": ("Same", SAME),
            "1": ("Maybe faster", MAYBE_BETTER),
            "2": ("Faster", BETTER),
        },
        nothing=("No baseline", UNKNOWN),
    )


def values(
    words: dict[str, tuple[str, str]], *, nothing: tuple[str, str] | None = None
) -> list[models.ValueMapping]:
    """Return mappings from values to (word, colour); `nothing` is for null."""
    options = {
        value: models.ValueMappingResult(text=text, color=colour, index=index)
        for index, (value, (text, colour)) in enumerate(words.items())
    }
    found: list[models.ValueMapping] = [models.ValueMap(options=options)] if options else []
    if nothing is not None:
        text, colour = nothing
        result = models.ValueMappingResult(text=text, color=colour, index=len(options))
        special = models.DashboardSpecialValueMapOptions(
            match=models.SpecialValueMatch.NULL_AND_NAN, result=result
        )
        found.append(models.SpecialValueMap(options=special))
    return found


def steps(base: str, *further: tuple[float, str]) -> dashboards.ThresholdsConfig:
    """Return thresholds: a colour below the first value, then a colour from each value on."""
    first = [models.Threshold(value=None, color=base)]
    rest = [models.Threshold(value=value, color=colour) for value, colour in further]
    config = dashboards.ThresholdsConfig().mode(models.ThresholdsMode.ABSOLUTE)
    return config.steps([*first, *rest])


def change_steps() -> dashboards.ThresholdsConfig:
    """Return the colours of a change where no verdict is at hand: a few percent are noise."""
    return steps(WORSE, (-0.10, MAYBE_WORSE), (-0.03, SAME), (0.03, MAYBE_BETTER), (0.10, BETTER))


def alarm_steps(limit: float = 1) -> dashboards.ThresholdsConfig:
    """Return grey below the limit and orange from it on."""
    return steps(SAME, (limit, WORSE))


def by_steps() -> dashboards.FieldColor:
    """Colour by threshold."""
    return dashboards.FieldColor().mode(models.FieldColorModeId.THRESHOLDS)


def plain(colour: str = SAME) -> dashboards.FieldColor:
    """One colour, which says nothing."""
    return dashboards.FieldColor().mode(models.FieldColorModeId.FIXED).fixed_color(colour)


def sequential() -> dashboards.FieldColor:
    """Darker is more: for absolute values, which are neither good nor bad by themselves."""
    return dashboards.FieldColor().mode(models.FieldColorModeId.CONTINUOUS_BLUES)


def case_link(prefix: str) -> dashboards.DashboardLink:
    """Return a link to the case; `prefix` is where its labels are.

    Args:
        prefix: `__data.fields` in tables, `__field.labels` in graphs.
    """
    labels = ("node", "scenario", "workload")
    variables = "&".join(f"var-{label}=${{{prefix}.{label}}}" for label in labels)
    url = f"/d/{CASE_UID}?${{__url_time_range}}&${{datasource:queryparam}}&{variables}"
    return dashboards.DashboardLink("Case detail").url(url)


def fixed(colour: str) -> dict[str, str]:
    """Return a colour mode: always this one."""
    return {"mode": "fixed", "fixedColor": colour}


def signed_words(*, neutral: bool = False, nothing: str = "") -> list[models.ValueMapping]:
    """Return what whole per cents are shown as: with sign, and a colour beyond 3 and 10 per cent.

    No unit of Grafana writes a plus, but a pattern on text does; the column is made text for it.

    Args:
        neutral: neither direction is the better one.
        nothing: what is shown where there is no value.
    """
    plus = ("blue", "blue") if neutral else (MAYBE_BETTER, BETTER)
    minus = ("purple", "purple") if neutral else (MAYBE_WORSE, WORSE)
    patterns = (
        ("/^-?0$/", "±0 %", SAME),
        ("/^([12])$/", "+$1 %", SAME),
        ("/^-([12])$/", "−$1 %", SAME),  # noqa: RUF001 # the sign, which a hyphen is not
        ("/^([3-9])$/", "+$1 %", plus[0]),
        ("/^-([3-9])$/", "−$1 %", minus[0]),  # noqa: RUF001 # likewise
        (r"/^(\d+)$/", "+$1 %", plus[1]),
        (r"/^-(\d+)$/", "−$1 %", minus[1]),  # noqa: RUF001 # likewise
        ("/^(null|undefined|NaN)$/", nothing, SAME),
    )
    return [
        models.RegexMap(
            options=models.DashboardRegexMapOptions(
                pattern=pattern,
                result=models.ValueMappingResult(text=text, color=colour, index=index),
            )
        )
        for index, (pattern, text, colour) in enumerate(patterns)
    ]

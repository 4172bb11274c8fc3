"""Colors, mappings and units: blue is better, orange is worse, gray is unchanged or unknown.

Where a value may be held, thresholds color it: `build.py` grays it by a color, which Grafana
prefers to thresholds, but not to the colors of overrides and mappings.

Only named colors of Grafana, which fit both themes. The pairs are tested for the three common
kinds of color blindness; a word or sign accompanies every color.
"""

from __future__ import annotations

from typing import Final

from grafana_foundation_sdk.builders import dashboard as dashboards
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models import dashboard as models

from builder.promql import FACTOR_CODE

BETTER: Final = "semi-dark-blue"
POSSIBLY_BETTER: Final = "blue"
NEUTRAL: Final = "text"
POSSIBLY_WORSE: Final = "orange"
WORSE: Final = "dark-orange"
UNKNOWN: Final = "transparent"
MINUS: Final = "\u2212"


def prop(name: str, value: object) -> models.DynamicConfigValue:
    """Return one property of an override, as schema 37 spells it; builders are built."""
    items = value if isinstance(value, list) else [value]
    built = [item.build() if isinstance(item, Builder) else item for item in items]
    return models.DynamicConfigValue(id_val=name, value=built if value is items else built[0])


UNSEEN: Final = [
    prop("custom.lineWidth", 0),
    prop("custom.showPoints", "never"),
    prop("custom.hideFrom", {"legend": True, "tooltip": True, "viz": False}),
]
"""Look of a line that only sets a limit of the axis or of a band."""


STATES: Final = {
    "-2": ("Slower", WORSE),
    "-1": ("Possibly slower", POSSIBLY_WORSE),
    "0": ("Unchanged", NEUTRAL),
    "1": ("Possibly faster", POSSIBLY_BETTER),
    "2": ("Faster", BETTER),
}
"""`pvebench_change_state` -> text, color."""
NO_BASELINE: Final = ("No baseline", UNKNOWN)


def values(
    texts: dict[str, tuple[str, str]], *, nothing: tuple[str, str] | None = None
) -> list[models.ValueMapping]:
    """Return mappings from values to (text, color or empty); `nothing` is for null."""
    options = {
        value: models.ValueMappingResult(text=text, color=color or None, index=index)
        for index, (value, (text, color)) in enumerate(texts.items())
    }
    mappings: list[models.ValueMapping] = [models.ValueMap(options=options)] if options else []
    if nothing is not None:
        text, color = nothing
        result = models.ValueMappingResult(text=text, color=color, index=len(options))
        match = models.SpecialValueMatch.NULL_AND_NAN
        special = models.DashboardSpecialValueMapOptions(match=match, result=result)
        mappings.append(models.SpecialValueMap(options=special))
    return mappings


def rated(
    texts: dict[str, tuple[str, str]], *, nothing: tuple[str, str] | None = None
) -> list[models.DynamicConfigValue]:
    """Return the look of numbers as words: number -> (text, color).

    The colors are thresholds: Grafana prefers those of mappings to the gray of held values.
    """
    words = values({value: (text, "") for value, (text, _) in texts.items()}, nothing=nothing)
    colors = sorted((float(value), color) for value, (_, color) in texts.items())
    return [prop("mappings", words), prop("thresholds", steps(NEUTRAL, *colors))]


def steps(base: str, *further: tuple[float, str]) -> dashboards.ThresholdsConfig:
    """Return thresholds: a color below the first value, then one from each value up."""
    first = [models.Threshold(value=None, color=base)]
    rest = [models.Threshold(value=value, color=color) for value, color in further]
    config = dashboards.ThresholdsConfig().mode(models.ThresholdsMode.ABSOLUTE)
    return config.steps([*first, *rest])


def by_steps() -> dashboards.FieldColor:
    """Return the color mode by threshold."""
    return dashboards.FieldColor().mode(models.FieldColorModeId.THRESHOLDS)


def plain(color: str = NEUTRAL) -> dashboards.FieldColor:
    """Return a fixed color mode, by default neutral."""
    return dashboards.FieldColor().mode(models.FieldColorModeId.FIXED).fixed_color(color)


def case_link(prefix: str) -> dashboards.DashboardLink:
    """Return a link to the case; `prefix`: place of its labels, `__data.fields` in tables."""
    labels = ("node", "scenario", "workload")
    variables = "&".join(f"var-{label}=${{{prefix}.{label}}}" for label in labels)
    url = f"/d/pvebench-case?${{__url_time_range}}&${{datasource:queryparam}}&{variables}"
    return dashboards.DashboardLink("Case detail").url(url)


def compare_link(prefix: str, *labels: str) -> dashboards.DashboardLink:
    """Return a link to the comparison with both sides filled in; `labels` besides the node."""
    fields = {"storage": "storage", "scenario": ""}
    pairs = [("node", "node"), *((one, fields[one]) for one in labels)]
    variables = "&".join(
        f"var-{f'{variable}_{side}' if variable else side}=${{{prefix}.{label}}}"
        for side in "ab"
        for label, variable in pairs
        # B defaults to another configuration of the same storage.
        if variable or side == "a"
    )
    url = f"/d/pvebench-compare?${{datasource:queryparam}}&{variables}"
    return dashboards.DashboardLink("Compare with another node, storage or configuration").url(url)


def signed_mappings(nothing: str = "") -> list[models.ValueMapping]:
    """Return mappings of changes to text: -40 is 40% less, 1000167 is ×1.67, null `nothing`.

    No unit of Grafana writes a plus sign, but a pattern on text does, so the column becomes text.
    """
    patterns = {
        r"/^1(?=\d{6}$)0*(\d+)(\d\d)$/": "×$1.$2",
        "/^-?0$/": "±0%",
        r"/^(\d+)$/": "+$1%",
        r"/^-(\d+)$/": f"{MINUS}$1%",
        "/^(null|undefined|NaN)$/": nothing,
    }
    mappings: list[models.ValueMapping] = []
    for index, (pattern, text) in enumerate(patterns.items()):
        result = models.ValueMappingResult(text=text, index=index)
        options = models.DashboardRegexMapOptions(pattern=pattern, result=result)
        mappings.append(models.RegexMap(options=options))
    return mappings


def signed_steps(*further: tuple[float, str], neutral: bool = False) -> dashboards.ThresholdsConfig:
    """Return the colors of changes as `signed_mappings` shows them, from 3 and 10% up.

    `further` are steps between the largest percentage and the first factor.
    """
    worse, better = (WORSE, POSSIBLY_WORSE), (POSSIBLY_BETTER, BETTER)
    if neutral:
        worse, better = ("purple", "purple"), ("blue", "blue")
    percents = ((-100, worse[0]), (-9, worse[1]), (-2, NEUTRAL), (3, better[0]), (10, better[1]))
    factors = ((0, better[1]), (90, better[0]), (98, NEUTRAL), (103, worse[1]), (110, worse[0]))
    return steps(
        NEUTRAL, *percents, *further, *((FACTOR_CODE + one, color) for one, color in factors)
    )

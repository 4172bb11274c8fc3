"""Colors, mappings and units: blue is better, orange is worse, gray is unchanged or unknown.

Only named colors of Grafana, which fit both themes. The pairs are tested for the three common
kinds of color blindness; a word or sign accompanies every color.
"""

from __future__ import annotations

from typing import Final

from grafana_foundation_sdk.builders import dashboard as dashboards
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models import dashboard as models

BETTER: Final = "semi-dark-blue"
POSSIBLY_BETTER: Final = "blue"
NEUTRAL: Final = "text"
POSSIBLY_WORSE: Final = "orange"
WORSE: Final = "dark-orange"
UNKNOWN: Final = "transparent"
CASE_UID: Final = "pvebench-case"
MINUS: Final = "\u2212"


def prop(name: str, value: object) -> models.DynamicConfigValue:
    """Return one property of an override, as schema 37 spells it; builders are built."""
    if isinstance(value, list):
        value = [_built(item) for item in value]
    return models.DynamicConfigValue(id_val=name, value=_built(value))


def _built(value: object) -> object:
    return value.build() if isinstance(value, Builder) else value


UNSEEN: Final = [
    prop("custom.lineWidth", 0),
    prop("custom.showPoints", "never"),
    prop("custom.hideFrom", {"legend": True, "tooltip": True, "viz": False}),
]
"""Look of a line that only sets a limit of the axis or of a band."""


def state_mappings() -> list[models.ValueMapping]:
    """Return the mappings of `pvebench_change_state`."""
    return values(
        {
            "-2": ("Slower", WORSE),
            "-1": ("Possibly slower", POSSIBLY_WORSE),
            "0": ("Unchanged", NEUTRAL),
            "1": ("Possibly faster", POSSIBLY_BETTER),
            "2": ("Faster", BETTER),
        },
        nothing=("No baseline", UNKNOWN),
    )


def values(
    texts: dict[str, tuple[str, str]], *, nothing: tuple[str, str] | None = None
) -> list[models.ValueMapping]:
    """Return mappings from values to (text, color); `nothing` is for null."""
    options = {
        value: models.ValueMappingResult(text=text, color=color, index=index)
        for index, (value, (text, color)) in enumerate(texts.items())
    }
    mappings: list[models.ValueMapping] = [models.ValueMap(options=options)] if options else []
    if nothing is not None:
        text, color = nothing
        result = models.ValueMappingResult(text=text, color=color, index=len(options))
        special = models.DashboardSpecialValueMapOptions(
            match=models.SpecialValueMatch.NULL_AND_NAN, result=result
        )
        mappings.append(models.SpecialValueMap(options=special))
    return mappings


def steps(base: str, *further: tuple[float, str]) -> dashboards.ThresholdsConfig:
    """Return thresholds: a color below the first value, then one from each value up."""
    first = [models.Threshold(value=None, color=base)]
    rest = [models.Threshold(value=value, color=color) for value, color in further]
    config = dashboards.ThresholdsConfig().mode(models.ThresholdsMode.ABSOLUTE)
    return config.steps([*first, *rest])


def alarm_steps(limit: float = 1) -> dashboards.ThresholdsConfig:
    """Return gray below the limit and orange from the limit up."""
    return steps(NEUTRAL, (limit, WORSE))


def by_steps() -> dashboards.FieldColor:
    """Return the color mode by threshold."""
    return dashboards.FieldColor().mode(models.FieldColorModeId.THRESHOLDS)


def plain(color: str = NEUTRAL) -> dashboards.FieldColor:
    """Return a fixed color mode, by default neutral."""
    return dashboards.FieldColor().mode(models.FieldColorModeId.FIXED).fixed_color(color)


def sequential() -> dashboards.FieldColor:
    """Return a color scale for absolute values, which are neither good nor bad; darker is more."""
    return dashboards.FieldColor().mode(models.FieldColorModeId.CONTINUOUS_BLUES)


def case_link(prefix: str) -> dashboards.DashboardLink:
    """Return a link to the case.

    Args:
        prefix: location of its labels: `__data.fields` in tables, `__field.labels` in graphs.
    """
    labels = ("node", "scenario", "workload")
    variables = "&".join(f"var-{label}=${{{prefix}.{label}}}" for label in labels)
    url = f"/d/{CASE_UID}?${{__url_time_range}}&${{datasource:queryparam}}&{variables}"
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


def fixed(color: str) -> dict[str, str]:
    """Return a color mode with one fixed color, as a plain dictionary."""
    return {"mode": "fixed", "fixedColor": color}


def signed_mappings(*, neutral: bool = False, nothing: str = "") -> list[models.ValueMapping]:
    """Return mappings of changes to text, colored from 3 and 10% up; 1000167 is ×1.67.

    No unit of Grafana writes a plus sign, but a pattern on text does, so the column becomes text.

    Args:
        neutral: neither direction is better.
        nothing: text for a missing value.
    """
    more = r"^1(?=\d{6}$)0*"
    plus = ("blue", "blue") if neutral else (POSSIBLY_BETTER, BETTER)
    minus = ("purple", "purple") if neutral else (POSSIBLY_WORSE, WORSE)
    patterns = (
        (rf"/{more}(1)(0[0-2])$/", "×$1.$2", NEUTRAL),
        (rf"/{more}(0)(9[89])$/", "×$1.$2", NEUTRAL),
        (rf"/{more}(1)(0[3-9])$/", "×$1.$2", minus[0]),
        (rf"/{more}(0)(9[0-7])$/", "×$1.$2", plus[0]),
        (rf"/{more}(0)(\d\d)$/", "×$1.$2", plus[1]),
        (rf"/{more}(\d+)(\d\d)$/", "×$1.$2", minus[1]),
        ("/^-?0$/", "±0%", NEUTRAL),
        ("/^([12])$/", "+$1%", NEUTRAL),
        ("/^-([12])$/", f"{MINUS}$1%", NEUTRAL),
        ("/^([3-9])$/", "+$1%", plus[0]),
        ("/^-([3-9])$/", f"{MINUS}$1%", minus[0]),
        (r"/^(\d+)$/", "+$1%", plus[1]),
        (r"/^-(\d+)$/", f"{MINUS}$1%", minus[1]),
        ("/^(null|undefined|NaN)$/", nothing, NEUTRAL),
    )
    return [
        models.RegexMap(
            options=models.DashboardRegexMapOptions(
                pattern=pattern,
                result=models.ValueMappingResult(text=text, color=color, index=index),
            )
        )
        for index, (pattern, text, color) in enumerate(patterns)
    ]

"""How the settings of each storage compare under each workload. Pure."""

from __future__ import annotations

import math

from pvebench.judging.fastest import Contest, contests
from pvebench.metrics import catalog
from pvebench.metrics.families import Families
from pvebench.metrics.snapshot import Snapshot, shown


def collect_settings(snapshot: Snapshot, families: Families) -> None:
    """Which setting is the fastest of each storage, and which differ from it beyond noise."""
    known = {record.key: record.last.definition for record in shown(snapshot) if record.good}
    for contest in contests(known, snapshot.trends):
        _add(contest, families)


def _add(contest: Contest, families: Families) -> None:
    for place in (*contest.places, *contest.apart):
        labels = place.definition.labels
        standing = {"against": str(place.against), "apart": str(place.apart)}
        families.add(catalog.SETTING_INFO, {**labels, **standing}, 1)
        if contest.fastest is not None:
            families.add(catalog.SETTING_GAP, labels, place.ratio)
        if not math.isnan(place.low):
            families.add(catalog.SETTING_GAP_NOISE, labels, (place.high - place.low) / 2)

"""Groups of related cases: what shares a bus, a cache mode, a format, a storage, a workload."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Label = tuple[str, str]
Group = tuple[Label, ...]
"""(label, value) pairs that all members carry; empty: all cases."""

LEAST_MEMBERS: Final = 3
"""Cases a group needs, and that must be outside it."""
LEAST_MOVED: Final = 0.7
"""Share of those with some labels in common that must have moved to be called by them."""


def groups_of(labels: Sequence[Mapping[str, str]]) -> dict[Group, NDArray[np.bool_]]:
    """Return every group of one label or of a pair of them, as a mask over the cases."""
    import numpy as np

    values: dict[str, NDArray[np.str_]] = {}
    for key in sorted({key for case in labels for key in case}):
        column = np.array([case.get(key, "") for case in labels])
        if len(set(column.tolist())) > 1:
            values[key] = column
    single: dict[Group, NDArray[np.bool_]] = {
        ((key, value),): column == value
        for key, column in values.items()
        for value in sorted(set(column.tolist()))
        if value
    }
    pairs = {
        (*one, *two): single[one] & single[two]
        for one, two in itertools.combinations(single, 2)
        if one[0][0] != two[0][0]
    }
    most = len(labels) - LEAST_MEMBERS
    return {
        group: mask
        for group, mask in {**single, **pairs}.items()
        if LEAST_MEMBERS <= mask.sum() <= most
    }


def common_group(
    members: Sequence[Mapping[str, str]], everyone: Sequence[Mapping[str, str]]
) -> Group | None:
    """Return the labels that the members share, if most of those that carry them are members.

    None if they share nothing that would name them; empty if nearly all are members.
    """
    if len(members) < LEAST_MEMBERS:
        return None
    shared = set(members[0].items())
    for labels in members[1:]:
        shared &= set(labels.items())
    telling = {
        (key, value) for key, value in shared if any(one.get(key) != value for one in everyone)
    }
    carriers = sum(telling <= set(labels.items()) for labels in everyone)
    if len(members) < LEAST_MOVED * carriers:
        return None
    return tuple(sorted(telling))

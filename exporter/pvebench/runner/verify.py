"""Is what was switched on what was asked for?"""

from __future__ import annotations

from collections.abc import MutableMapping

from pvebench.model.disk import option_text
from pvebench.model.ports import Site
from pvebench.model.scenario import Scenario
from pvebench.model.storage_identity import IdentityRecords, change, is_same, show
from pvebench.model.volume import Attachment


class Invalid(Exception):  # not an error: a run that does not count
    """The run is not what was asked for."""


def mismatch(scenario: Scenario, attachment: Attachment) -> str:
    """Return what differs between the scenario and the read-back, or an empty string.

    An option that was not read back counts as a difference unless the driver says that
    nothing outside can confirm it. An option that is left as it is may be anything.
    """
    disk = scenario.disk
    asked = {
        key: option_text(getattr(disk, key))
        for key in disk.__dataclass_fields__
        if key not in attachment.unverified and getattr(disk, key) is not None
    }
    asked["size_bytes"] = str(scenario.volume_bytes)
    differences = [
        f"{key}: asked {wanted}, found {attachment.effective.get(key) or 'nothing'}"
        for key, wanted in asked.items()
        if attachment.effective.get(key) != wanted
    ]
    return "; ".join(differences)


def check_identity(
    site: Site, storage: str, records: IdentityRecords, evidence: MutableMapping[str, str]
) -> None:
    """Compare a storage with the recorded one. What it is at its first run is recorded.

    Raises:
        Invalid: it is another one. DriverError: it is not there. StoreError.
    """
    now = site.identify(storage)
    evidence["storage_identity"] = show(now)
    was = records.recorded(site.node, storage)
    if was is None:
        if now:
            records.record(site.node, storage, now)
    elif not is_same(was, now):
        raise Invalid(change(storage, was, now))

"""The fault that is made of a storage while a workload runs on it, if its settings name one."""

from __future__ import annotations

from typing import Final

from pvebench.errors import FaultFailed
from pvebench.model.ports import Site
from pvebench.model.run import Sample, Unit
from pvebench.model.workload import Case

_LONGEST_SECONDS: Final = 600.0
"""After the workload's end; the next case must not find the storage disturbed."""


class Disturbance:
    """The fault of one run; nothing happens where the workload wants none."""

    def __init__(self, site: Site, case: Case) -> None:
        self._clock = site.clock
        self._name = str(case.workload.parameters.get("fault", ""))
        self._fault = site.faults.get((case.scenario.storage, self._name))
        self._begun = False

    @property
    def notes(self) -> tuple[str, ...]:
        """What the reader of the run should know."""
        if not self._name or self._begun:
            return ()
        return (f"pvebench did nothing to the storage: its settings name no fault {self._name}",)

    def begin(self) -> None:
        """Make the fault. Raises FaultFailed."""
        if self._name and self._fault is not None:
            self._fault.begin()
            self._begun = True

    def samples(self) -> list[Sample]:
        """Wait until it is over; return how long it lasted. Raises FaultFailed."""
        if self._fault is None or not self._begun:
            return []
        deadline = self._clock.monotonic() + _LONGEST_SECONDS
        while (seconds := self._fault.lasted()) is None:
            if self._clock.monotonic() > deadline:
                raise FaultFailed(f"fault {self._name} does not end")
            self._clock.sleep(0.1)
        return [Sample("fault_time", None, seconds, Unit.SECONDS)]

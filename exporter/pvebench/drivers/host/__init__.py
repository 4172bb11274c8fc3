"""This machine: its clock and its counters."""

from pvebench.drivers.host.clock import SystemClock
from pvebench.drivers.host.facts import host_facts
from pvebench.drivers.host.procfs import ProcProbe

__all__ = ["ProcProbe", "SystemClock", "host_facts"]

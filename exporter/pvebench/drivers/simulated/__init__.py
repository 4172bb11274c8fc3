"""The ports without a VM: deterministic by seed, in simulated time, with switchable faults.

Everything it produces says `simulated`, and the store refuses to mix it with measured results.
"""

from pvebench.drivers.simulated.clock import SimulatedClock
from pvebench.drivers.simulated.faults import Fault, Faults
from pvebench.drivers.simulated.reality import Reality, undo_simulated
from pvebench.drivers.simulated.site import SimulatedProbe, simulated_site
from pvebench.drivers.simulated.world import World

__all__ = [
    "Fault",
    "Faults",
    "Reality",
    "SimulatedClock",
    "SimulatedProbe",
    "World",
    "simulated_site",
    "undo_simulated",
]

"""A whole simulated node."""

from __future__ import annotations

from pvebench.drivers.simulated.clock import SimulatedClock
from pvebench.drivers.simulated.world import World
from pvebench.model.host import HostSnapshot
from pvebench.model.ports import Site


class SimulatedProbe:
    """`model.ports.HostProbe`: a host that is always half busy."""

    def __init__(self, clock: SimulatedClock) -> None:
        self._clock = clock

    def snapshot(self) -> HostSnapshot:
        """Return counters that grow steadily with simulated time."""
        now = self._clock.monotonic()
        shares = {"total": 1.0, "qemu": 0.8, "vcpu": 0.5, "iothread": 0.1, "other": 0.2}
        return HostSnapshot(
            monotonic=now, cpu_seconds={key: now * share for key, share in shares.items()}, cpus=2
        )


def simulated_site(world: World) -> Site:
    """Return the site around a simulated world."""
    return Site(
        node=world.node, hypervisor=world, probe=SimulatedProbe(world.clock), clock=world.clock,
        simulated=True,
    )  # fmt: skip

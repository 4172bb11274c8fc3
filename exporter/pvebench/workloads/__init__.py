"""One room a benchmark tool. A new tool is one module and one line in `ROOMS`."""

from __future__ import annotations

from typing import Final

from pvebench.workloads.base import Estimate, Job, Parsed, Played, Room, Target, ToolOptions
from pvebench.workloads.bonnie import Bonnie
from pvebench.workloads.dd import Dd
from pvebench.workloads.fio import Fio
from pvebench.workloads.hdparm import Hdparm
from pvebench.workloads.ioping import Ioping
from pvebench.workloads.still import Boot, Idle
from pvebench.workloads.sysbench import Sysbench

__all__ = ["ROOMS", "Estimate", "Job", "Parsed", "Played", "Room", "Target", "ToolOptions"]

ROOMS: Final[dict[str, Room]] = {
    room.tool: room
    for room in (Fio(), Ioping(), Sysbench(), Bonnie(), Dd(), Hdparm(), Idle(), Boot())
}

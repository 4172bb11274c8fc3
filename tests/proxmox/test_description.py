"""What pvebench records in a VM's description stays within the limit of Proxmox VE."""

from __future__ import annotations

from pvebench.drivers.proxmox.vm.description import Filled, description, filled_of, mark_of


def test_a_description_never_grows_beyond_what_proxmox_takes() -> None:
    notes = [
        Filled(
            key=f"local.raw.{n}",
            storage="local",
            volid=f"local:9000/vm-9000-{n}",
            format="raw",
            size_bytes=n,
            listed_bytes=n,
            content="data",
            options="blocksize=16k",
        )
        for n in range(200)
    ]
    text = description("0" * 32, notes)
    assert len(text) <= 8192
    found = filled_of({"description": text})
    assert found == notes[: len(found)]
    assert mark_of({"description": text}) == "0" * 32

"""Storages that QEMU opens over a network."""

from __future__ import annotations

from pvebench_lab.storages import network


def test_the_url_of_an_nfs_volume_has_an_ipv6_address_in_brackets() -> None:
    assert network._url("fe80::1", "/bench", "x") == "nfs://[fe80::1]/bench/x"
    assert network._url("10.0.0.9", "/bench") == "nfs://10.0.0.9/bench"

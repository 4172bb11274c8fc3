"""Storages that QEMU opens over a network."""

from __future__ import annotations

from unittest.mock import Mock

import pytest

from pvebench.model.units import MIB
from pvebench_lab.storages import network
from testing.null_journal import NullJournal
from testing.storages import host_row, storage_context


@pytest.mark.parametrize(("server", "host"), [("10.0.0.9", "10.0.0.9"), ("fe80::1", "[fe80::1]")])
def test_an_nfs_volume_is_created_by_a_url(
    server: str, host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = Mock()
    monkeypatch.setattr(network, "create_image", create)
    monkeypatch.setattr(network, "unlink", Mock())
    context = storage_context(name="share", kind="nfs", server=server, export="/bench")
    volume = network.NfsStorage(context, NullJournal()).create(host_row(MIB))
    assert create.call_args.args[0] == f"nfs://{host}/bench/{volume.volid}"

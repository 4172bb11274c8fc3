"""Types of fields in YAML files."""

from __future__ import annotations

import pytest
from pydantic import TypeAdapter

from pvebench.fields import Listen


@pytest.mark.parametrize(
    "host", ["a b", "a" * 64, "a..b", "[zz]", "[1.2.3.4]", "*", "999.1.1.1", "256", "::1", "[::1"]
)
def test_a_host_on_which_no_socket_can_listen_is_refused(host: str) -> None:
    with pytest.raises(ValueError, match="invalid listen address"):
        TypeAdapter(Listen).validate_python(f"{host}:10620")


@pytest.mark.parametrize("host", ["localhost", "Node1.example.org", "[::1]", "[::]", "10.0.0.1"])
def test_addresses_and_names_of_hosts_are_listen_addresses(host: str) -> None:
    assert TypeAdapter(Listen).validate_python(f"{host}:10620") == f"{host}:10620"

"""Types of fields in YAML files."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
from pydantic import TypeAdapter

from pvebench.config.settings import FleetSettings
from pvebench.fields import Listen, Ratio, Scale, is_loopback
from pvebench.web.tls_and_users import exposure


@pytest.mark.parametrize(
    "host", ["a b", "a" * 64, "a..b", "[zz]", "[1.2.3.4]", "*", "999.1.1.1", "256", "::1", "[::1"]
)
def test_a_host_on_which_no_socket_can_listen_is_refused(host: str) -> None:
    with pytest.raises(ValueError, match="invalid listen address"):
        TypeAdapter(Listen).validate_python(f"{host}:10620")


@pytest.mark.parametrize("host", ["localhost", "Node1.example.org", "[::1]", "[::]", "10.0.0.1"])
def test_addresses_and_names_of_hosts_are_listen_addresses(host: str) -> None:
    assert TypeAdapter(Listen).validate_python(f"{host}:10620") == f"{host}:10620"


@pytest.mark.parametrize(
    ("field", "largest", "beyond"),
    [(Ratio, "1000%", "1001%"), (Scale, 100, 100.5), (Listen, "h:65535", "h:65536")],
)
def test_a_value_beyond_the_largest_is_refused(field: Any, largest: object, beyond: object) -> None:
    assert TypeAdapter(field).validate_python(largest)
    with pytest.raises(ValueError, match=f"invalid .*{beyond}"):
        TypeAdapter(field).validate_python(beyond)


@pytest.mark.parametrize(
    ("host", "here"),
    [
        *((host, True) for host in ("localhost", "127.0.0.1", "127.0.0.2", "[::1]")),
        *(
            (host, False) for host in ("10.0.0.1", "127.example.org", "[::]", "0.0.0.0")
        ),  # read, not bound
    ],
)
def test_only_loopback_is_this_machine_for_all_that_ask(host: str, *, here: bool) -> None:
    assert is_loopback(host) is here
    assert (exposure(f"{host}:10620", None) == "") is here
    hub = {"url": f"http://{host}", "token_file": "/token"}
    with nullcontext() if here else pytest.raises(ValueError, match="plain http"):
        FleetSettings.model_validate(hub)

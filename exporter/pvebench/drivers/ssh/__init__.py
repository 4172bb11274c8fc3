"""Section `ssh` of the settings, for machines that are reached by ssh."""

from __future__ import annotations

import re
from typing import Annotated, Final, Self

from pydantic import AfterValidator, Field, StrictInt, StrictStr, model_validator

from pvebench.fields import FilePath, Strict

_FINGERPRINT: Final = re.compile(r"SHA256:[A-Za-z0-9+/]{43}")
_USER: Final = re.compile(r"[a-z_][a-z0-9_-]{0,31}\Z")
_HOST: Final = re.compile(r"[^\s/@-][^\s/@]*\Z")


def _fingerprint(text: str) -> str:
    if text and not _FINGERPRINT.fullmatch(text):
        raise ValueError(
            f"{text!r} is not the fingerprint of a host key; run on the machine "
            "`ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub`"
        )
    return text


def _user(name: str) -> str:
    if not _USER.match(name):
        raise ValueError(f"invalid user name {name!r}")
    return name


def _host(name: str) -> str:
    if not _HOST.match(name) or name.count(":") == 1:
        raise ValueError(f"invalid host {name!r}: write user and port in their own keys")
    return name


class SshSettings(Strict):
    """Address and keys of a machine. Passwords and agents are not used.

    Attributes:
        host: name or address; with several nodes `{node}` is replaced by the measured node.
        key_file: the private key, without a passphrase, not readable by others.
        known_hosts: ssh's file with its host key; None: ~/.ssh/known_hosts.
        fingerprint: of its host key, instead of known_hosts.
    """

    host: Annotated[StrictStr, AfterValidator(_host)]
    port: StrictInt = Field(default=22, ge=1, le=65535)
    user: Annotated[StrictStr, AfterValidator(_user)] = "pvebench"
    key_file: FilePath
    known_hosts: FilePath | None = None
    fingerprint: Annotated[StrictStr, AfterValidator(_fingerprint)] = ""

    @model_validator(mode="after")
    def _known_in_one_way(self) -> Self:
        if self.known_hosts is not None and self.fingerprint:
            raise ValueError("set either known_hosts or fingerprint, not both")
        return self

    def of_node(self, node: str) -> SshSettings:
        """Return the settings for `node`."""
        return self.model_copy(update={"host": self.host.replace("{node}", node)})

    @property
    def where(self) -> str:
        """`user@host` for messages, with the port unless it is 22."""
        return f"{self.user}@{self.host}" + (f":{self.port}" if self.port != 22 else "")

"""By what name and under which rules clients come in; the rules are read anew when they change."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterable
from ipaddress import ip_address
from pathlib import Path
from typing import Final

import structlog

from pvebench.config.web_config import WebConfig, load_web_config
from pvebench.errors import ConfigError
from pvebench.files import signature

_HOST: Final = re.compile(r"(?:\[(?P<ip>[0-9A-Fa-f:.]+)\]|(?P<name>[A-Za-z0-9._-]+))(?::\d{1,5})?")

log = structlog.get_logger()


class Access:
    """The names that are ours, and what the web configuration file says now.

    Args:
        address: what is listened on, `host:port`.
        names: further names that clients may ask for.
        file: the web configuration file, if there is one.

    Raises:
        ConfigError: the file is wrong.
    """

    def __init__(
        self, address: str = "", *, names: Iterable[str] = (), file: Path | None = None
    ) -> None:
        # Its own name too: nobody else on the internet has that, and containers are called by it.
        own = (address.rpartition(":")[0], "localhost", socket.gethostname(), *names)
        self._names = frozenset(name.lower().rstrip(".") for name in own)
        self._file = file
        self._config = WebConfig() if file is None else load_web_config(file)
        self._seen = signature(self._config.files)

    @property
    def scheme(self) -> str:
        """How clients must ask: `http` or `https`."""
        return "http" if self._config.tls is None else "https"

    def is_ours(self, host: str) -> bool:
        """Return whether a Host header names this machine: by an address, or a name of ours.

        A page elsewhere whose name is made to lead here (DNS rebinding) can ask by its own name
        only.
        """
        found = _HOST.fullmatch(host)
        if found is None:
            return False
        name = (found["ip"] or found["name"]).lower().rstrip(".")
        return name in self._names or name.endswith(".localhost") or _is_address(name)

    def now(self) -> WebConfig:
        """Return what is in force; a changed file is taken over first, if it is right.

        Called from one thread only.
        """
        if self._file is not None and (seen := signature(self._config.files)) != self._seen:
            self._seen = seen
            self._reread(self._file)
        return self._config

    def _reread(self, file: Path) -> None:
        try:
            found = load_web_config(file)
        except ConfigError as error:
            # Between a new certificate and its new key it is so for a moment.
            log.warning("the changed web configuration is not used", reason=str(error))
            return
        if (found.tls is None) is not (self._config.tls is None):
            reason = "tls_server_config cannot come or go while running; restart pvebench"
            log.warning("the changed web configuration is not used", reason=reason)
            return
        self._config, self._seen = found, signature(found.files)
        log.info("web configuration reloaded", file=str(file))


def _is_address(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True

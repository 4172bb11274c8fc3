"""Grafana's HTTP API, as far as dashboards are pushed. The token never leaves this module."""

from __future__ import annotations

import http.client
import json
import ssl
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from pvebench import __version__
from pvebench.answers import Body, EndlessAnswer, read_body
from pvebench.errors import ChainBroken, ConfigError, Problem
from pvebench.foreign_text import one_line
from pvebench.model.units import MIB

MOST_BYTES: Final = 32 * MIB
"""Of an answer: a dashboard is some hundred kB."""
_ALL_SECONDS: Final = 60.0
_STILL_SECONDS: Final = 20.0
_SHOWN: Final = 200


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """An answer that leads elsewhere is an answer: the token goes to the address that was given."""

    def redirect_request(self, *_: Any) -> None:
        return None


class Grafana:
    """One Grafana, by the address of its root.

    Args:
        ca_file: authority to trust instead of the system's.

    Raises:
        ConfigError: address or token cannot be one.
    """

    def __init__(self, url: str, token: str, ca_file: Path | None = None) -> None:
        self.url = _root(url)
        if not token.isascii() or not token.isprintable() or " " in token or not token:
            raise _wrong("--token-file", "holds no token: one word of ASCII characters")
        self._token = token
        context = _trust(ca_file)
        # Proxies of the environment are for the web; a token is not shown to them.
        self._opener = urllib.request.build_opener(
            urllib.request.HTTPSHandler(context=context),
            urllib.request.ProxyHandler({}),
            _NoRedirect(),
        )

    def get(self, path: str) -> Any:
        """Return what is there; None: there is nothing (404)."""
        return self._call("GET", path, None)

    def post(self, path: str, body: dict[str, Any]) -> Any:
        """Make or change something."""
        return self._call("POST", path, json.dumps(body).encode())

    def delete(self, path: str) -> Any:
        """Remove something; None: it was not there."""
        return self._call("DELETE", path, None)

    def _call(self, method: str, path: str, body: bytes | None) -> Any:
        headers = {
            "Authorization": f"Bearer {self._token}",
            "Content-Type": "application/json",
            "Accept": "application/json",
            "User-Agent": f"pvebench/{__version__}",
        }
        request = urllib.request.Request(  # noqa: S310 # http or https, see _root
            self.url + path, body, headers, method=method
        )
        what = f"{method} {path.partition('?')[0]}"
        try:
            with self._opener.open(request, timeout=_STILL_SECONDS) as answer:
                return self._json(what, _read(what, answer))
        except urllib.error.HTTPError as error:
            with error:
                return self._refused(what, error)
        except (OSError, ValueError, http.client.HTTPException) as error:
            reason = self._clean(str(getattr(error, "reason", error)))
            raise ChainBroken(
                f"Grafana at {self.url} does not answer: {reason}",
                cause="another address, or a certificate of an authority that is not known here",
                next_step="mend --url; name the authority with --ca-file",
            ) from None  # the original may hold what was sent

    def _refused(self, what: str, error: urllib.error.HTTPError) -> None:
        if error.code == 404:
            return
        text = _read(what, error).decode("utf-8", "replace")
        try:
            said = str(json.loads(text)["message"])
        except (ValueError, KeyError, TypeError, RecursionError):
            said = text
        causes = {
            401: ("the token is not known there, or has ended", "make one, see the docs"),
            403: ("the token's service account lacks a right", "give it the role Admin"),
            412: ("somebody changed it at this moment", "push again"),
        }
        cause, next_step = causes.get(error.code, ("", f"look at {self.url} and its log"))
        raise ChainBroken(
            f"Grafana answers {error.code} to {what}: {self._clean(said)}",
            cause=cause,
            next_step=next_step,
        )

    def _json(self, what: str, text: bytes) -> Any:
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            shown = self._clean(text[:_SHOWN].decode("utf-8", "replace"))
            raise ChainBroken(
                f"what answers {what} at {self.url} is not Grafana: {shown}",
                next_step="name the address of Grafana's root with --url",
            ) from None

    def _clean(self, text: str) -> str:
        """Return foreign text for a message: one short line, without the token."""
        return one_line(text.replace(self._token, "…"), _SHOWN)


def _root(url: str) -> str:
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise _wrong("--url", f"{url[:_SHOWN]!r}: {error}") from error
    if parts.scheme not in {"http", "https"} or not host or not url.isprintable() or " " in url:
        raise _wrong("--url", f"{url[:_SHOWN]!r} is not such as https://grafana.example.org")
    if parts.username or parts.password or parts.query or parts.fragment:
        raise _wrong("--url", "has more than an address and a path; the login is in --token-file")
    return url.rstrip("/")


def _trust(ca_file: Path | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=str(ca_file) if ca_file else None)
    except OSError as error:  # an SSLError is one too
        raise _wrong("--ca-file", f"{ca_file} has no certificate: {error}") from error


def _read(what: str, answer: Body) -> bytes:
    try:
        return read_body(answer, most=MOST_BYTES, seconds=_ALL_SECONDS)
    except EndlessAnswer as error:
        raise ChainBroken(
            f"the answer to {what} was {error}",
            cause="what answers is not Grafana",
            next_step="name the address of Grafana's root with --url",
        ) from error


def _wrong(option: str, message: str) -> ConfigError:
    return ConfigError([Problem("command line", 0, 0, f"{option}: {message}")])

"""Basic authentication: passwords are compared with bcrypt hashes, beside the event loop."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import secrets
from base64 import b64decode
from collections.abc import Mapping
from typing import Final

import bcrypt

MOST_WAITING: Final = 8
"""Logins that wait while one is looked at, which takes a tenth of a second of a CPU."""
MOST_KNOWN: Final = 100
_BCRYPT_BYTES: Final = 72
"""Of a password: bcrypt never looked at more, and htpasswd leaves the rest out too."""


class TooMany(Exception):
    """So many logins wait already that this one is not looked at."""


class Logins:
    """Who has logged in before is let in at once, so that a scrape costs nothing.

    What is remembered is a keyed digest of name, hash and password, of those that were right.
    """

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)
        self._known: set[bytes] = set()
        self._waiting = 0
        self._one_at_a_time = asyncio.Lock()

    async def admits(self, users: Mapping[str, bytes], header: str) -> bool:
        """Return whether an Authorization header has the name and password of a user.

        Raises:
            TooMany: it was not looked at.
        """
        given = _credentials(header)
        if given is None:
            return False
        name, password = given
        digest = self._digest(name.encode(), users.get(name, b""), password)
        if digest in self._known:
            return True
        # Somebody's hash for a name that is nobody's, and always the same one: it takes as long.
        choice = int.from_bytes(self._digest(name.encode()), "big") % len(users)
        wanted = users.get(name, sorted(users.values())[choice])
        if not await self._fits(password, wanted) or name not in users:
            return False
        if len(self._known) >= MOST_KNOWN:
            self._known.clear()
        self._known.add(digest)
        return True

    def _digest(self, *parts: bytes) -> bytes:
        whole = b"".join(hashlib.sha256(part).digest() for part in parts)
        return hmac.digest(self._key, whole, "sha256")

    async def _fits(self, password: bytes, wanted: bytes) -> bool:
        if self._waiting >= MOST_WAITING:
            raise TooMany
        self._waiting += 1
        try:
            async with self._one_at_a_time:
                return await asyncio.to_thread(bcrypt.checkpw, password[:_BCRYPT_BYTES], wanted)
        finally:
            self._waiting -= 1


def _credentials(header: str) -> tuple[str, bytes] | None:
    """Return (name, password) of `Basic …` (RFC 7617); None: it is not that."""
    scheme, _, text = header.partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        name, colon, password = b64decode(text.strip(), validate=True).partition(b":")
        return (name.decode(), password) if colon else None
    except ValueError:
        return None

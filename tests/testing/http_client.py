"""HTTP requests as `httpx2` makes them, each on a connection of its own.

What would make them slow is made once: the certificates of the system, read anew for every request
(40 ms), plain HTTP or not.
"""

from __future__ import annotations

import ssl
from functools import partial
from typing import Final

import httpx2

_TRUSTED: Final = ssl.create_default_context()

get: Final = partial(httpx2.get, verify=_TRUSTED)
post: Final = partial(httpx2.post, verify=_TRUSTED)
request: Final = partial(httpx2.request, verify=_TRUSTED)

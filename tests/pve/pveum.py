"""`pveum`, `pvesh get` and `pveversion` of a node, as far as `init` prints them, at the test API.

Which call a command makes, and which arguments go without a name, is read in pveum.pm of
pve-access-control. Run by its path: it must not need the rest of the tests.
"""

from __future__ import annotations

import json
import os
import ssl
import sys
import urllib.error
import urllib.parse
import urllib.request

COMMANDS = {
    "role add": ("POST", "/access/roles", ("roleid",)),
    "role modify": ("PUT", "/access/roles/{roleid}", ("roleid",)),
    "role delete": ("DELETE", "/access/roles/{roleid}", ("roleid",)),
    "role list": ("GET", "/access/roles", ()),
    "user add": ("POST", "/access/users", ("userid",)),
    "user delete": ("DELETE", "/access/users/{userid}", ("userid",)),
    "user list": ("GET", "/access/users", ()),
    "user token add": ("POST", "/access/users/{userid}/token/{tokenid}", ("userid", "tokenid")),
    "user token modify": ("PUT", "/access/users/{userid}/token/{tokenid}", ("userid", "tokenid")),
    "user token delete": (
        "DELETE",
        "/access/users/{userid}/token/{tokenid}",
        ("userid", "tokenid"),
    ),
    "user token list": ("GET", "/access/users/{userid}/token", ("userid",)),
    "acl list": ("GET", "/access/acl", ()),
    "acl modify": ("PUT", "/access/acl", ("path",)),
    "pool add": ("POST", "/pools", ("poolid",)),
    "pool modify": ("PUT", "/pools", ("poolid",)),
    "pool delete": ("DELETE", "/pools", ("poolid",)),
    "pool list": ("GET", "/pools", ()),
}


def main(name: str, words: list[str]) -> int:
    if name == "pveversion":
        print(f"pve-manager/{os.environ['PVE_VERSION']}/0123456789abcdef (running kernel: test)")
        return 0
    if name == "pvesh":
        return call("GET", words[1], {})
    for size in (3, 2):
        found = COMMANDS.get(" ".join(words[:size]))
        if found:
            method, path, positions = found
            return call(method, path, _arguments(words[size:], positions))
    print(f"ERROR: unknown command 'pveum {' '.join(words)}'", file=sys.stderr)
    return 255


def _arguments(words: list[str], positions: tuple[str, ...]) -> dict[str, str]:
    given = dict(zip(positions, words, strict=False))
    rest = words[len(positions) :]
    options = dict(zip(rest[::2], rest[1::2], strict=True))
    return given | {
        key.removeprefix("--"): value for key, value in options.items() if key != "--output-format"
    }


def call(method: str, path: str, params: dict[str, str]) -> int:
    place = path.format(**params)
    rest = {key: value for key, value in params.items() if f"{{{key}}}" not in path}
    text = urllib.parse.urlencode(rest)
    change = method in ("POST", "PUT")
    request = urllib.request.Request(
        f"{os.environ['PVE_API']}{place}{f'?{text}' if text and not change else ''}",
        data=text.encode() if change else None,
        headers={"Authorization": f"PVEAPIToken={os.environ['PVE_TOKEN']}"},
        method=method,
    )
    trusting = ssl._create_unverified_context()
    try:
        with urllib.request.urlopen(request, context=trusting) as answer:
            body = json.load(answer)
    except urllib.error.HTTPError as error:
        body = json.loads(error.read() or b"{}")
        errors = "".join(f"\n{key}: {why}" for key, why in (body.get("errors") or {}).items())
        print(f"{body.get('message') or error.reason}{errors}", file=sys.stderr)
        return 255
    if body.get("data") is not None:
        print(json.dumps(body["data"], sort_keys=True, separators=(",", ":")))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))

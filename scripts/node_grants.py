"""The part of packaging/proxmox/proxmox-lxc.sh that grants pvebench its privileges.

The commands are those of `pvebench proxmox init`, with variables of the script instead of pool and
storage, so that a node runs no code from a container.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from typing import Final, get_args

from pvebench.drivers.proxmox.api.privileges import (
    DEFAULT_POOL,
    MAX_POOL,
    TOKEN_NAME,
    RequiredGrants,
    user_of,
)
from pvebench.drivers.proxmox.proxmox_settings import ProxmoxSettings
from pvebench.drivers.proxmox.setup.permissions import GrantStep, grant_steps, no_token

SCRIPT: Final = "packaging/proxmox/proxmox-lxc.sh"
_BEGIN: Final = "# --- generated from drivers/proxmox/setup/permissions.py by make generate ---\n"
_END: Final = "# --- end of the generated part ---\n"
_POOL, _STORAGE = "@pool@", "@storage@"
_USER, _TOKEN = user_of(_POOL), f"'{user_of(_POOL)}!{TOKEN_NAME}'"
_VARIABLES: Final = {
    _TOKEN: '"$pve_user!$pve_token"',
    _USER: '"$pve_user"',
    _POOL: '"$pool"',
    _STORAGE: '"$storage"',
}
"""Placeholder that shlex does not quote -> quoted variable in the script."""
_MAJORS: Final[tuple[int, ...]] = get_args(ProxmoxSettings.model_fields["version"].annotation)


def with_grants(script: str) -> str:
    """Return the script with its generated part updated."""
    before, begin, rest = script.partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not (begin and end):
        raise ValueError(f"{SCRIPT} lacks the marker lines of its generated part")
    return before + begin + "\n".join(_lines()) + "\n" + end + after


def _lines() -> Iterator[str]:
    yield f"readonly pve_token={shlex.quote(TOKEN_NAME)} longest_pool={MAX_POOL}"
    named = user_of(_POOL).replace(_POOL, "$1")
    default = f"{DEFAULT_POOL}) echo {user_of(DEFAULT_POOL)}"
    yield f'user_of() {{ case "$1" in {default} ;; *) echo "{named}" ;; esac; }}'
    yield f"end_token() {{ {_with_variables(no_token(_USER).text)}; }}"
    yield "make_grants() {"
    yield "    local storage"
    tables = [
        grant_steps(RequiredGrants(major=major, pool=_POOL, storages=(_STORAGE,)))
        for major in _MAJORS
    ]
    for steps in zip(*tables, strict=True):
        yield f"    {_of_all_versions([_line(step) for step in steps])}"
    yield "}"


def _of_all_versions(lines: Sequence[str]) -> str:
    if len(set(lines)) == 1:
        return lines[0]
    cases = " ".join(f"{major}) {line} ;;" for major, line in zip(_MAJORS, lines, strict=True))
    return f'case "$major" in {cases} esac'


def _line(step: GrantStep) -> str:
    line = step.text
    if step.unless is not None:
        query = shlex.join((step.unless.key, step.unless.value, *step.unless.command))
        line = f"listed {query} || made {line}"
    line = _with_variables(line)
    if _STORAGE in step.command:
        line = f'for storage in "${{measured[@]}}" "$iso_storage"; do {line}; done'
    return line


def _with_variables(line: str) -> str:
    for name, variable in _VARIABLES.items():
        line = line.replace(name, variable)
    return line

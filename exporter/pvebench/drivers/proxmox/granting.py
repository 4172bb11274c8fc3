"""What an administrator must make once: as commands to read, and as calls to make."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pvebench.drivers.proxmox.access import (
    NODE_PRIVILEGES,
    NODE_ROLE,
    SCRUB_PATH,
    TOKEN_NAME,
    USER,
    VM_ROLE,
    vm_privileges,
)
from pvebench.drivers.proxmox.connection import Api
from pvebench.drivers.proxmox.faults import Rejected
from pvebench.drivers.proxmox.login import Token
from pvebench.errors import AccessDenied


@dataclass(frozen=True, slots=True)
class Step:
    """One thing to make.

    Attributes:
        command: for the node's shell.
        method, path, params: the same at the API.
        again: what to do instead where it exists already: `keep` it, `PUT` it anew, or `token`:
            keep it, which is of use only to those who have its secret.
    """

    command: tuple[str, ...]
    method: str
    path: str
    params: tuple[tuple[str, Any], ...]
    again: str = "keep"

    @property
    def text(self) -> str:
        """The command as it is typed."""
        return shlex.join(self.command)


def grant_steps(
    *, major: int, pool: str, storages: Sequence[str], scrub_guard: bool = False
) -> list[Step]:
    """Return everything that a token needs to measure, and nothing else.

    With privilege separation a right must be given to the user and to the token: both are asked.

    Args:
        major: of the server's version; the right to use the guest agent has two names.
        storages: ids of the storages that are measured, and of the one for the guest's image.
        scrub_guard: also give what it takes to see that a ZFS pool is being scrubbed.
    """
    roles = {VM_ROLE: sorted(vm_privileges(major)), NODE_ROLE: sorted(NODE_PRIVILEGES)}
    steps = [_role(name, privileges) for name, privileges in roles.items()]
    names = ",".join(sorted(set(storages)))
    steps += [
        Step(("pveum", "pool", "add", pool), "POST", "/pools", (("poolid", pool),)),
        Step(
            ("pveum", "pool", "modify", pool, "--storage", names),
            "PUT", "/pools", (("poolid", pool), ("storage", names)),
        ),
        Step(("pveum", "user", "add", USER), "POST", "/access/users", (("userid", USER),)),
        Step(
            ("pveum", "user", "token", "add", USER, TOKEN_NAME, "--privsep", "1"),
            "POST", f"/access/users/{USER}/token/{TOKEN_NAME}", (("privsep", 1),), again="token",
        ),
    ]  # fmt: skip
    for path, role in ((f"/pool/{pool}", VM_ROLE), ("/nodes", NODE_ROLE)):
        steps += [_acl(path, role, "users", USER), _acl(path, role, "tokens", _FULL)]
    if scrub_guard:
        # Rights on / reach everything below, unless they are not to be inherited.
        for kind, who in (("users", USER), ("tokens", _FULL)):
            steps.append(_acl(SCRUB_PATH, NODE_ROLE, kind, who, inherited=False))
    return steps


_FULL: Final = f"{USER}!{TOKEN_NAME}"


def is_ours(token: Token) -> bool:
    """Return whether it is the token that `grant_steps` make."""
    return f"{token.user}!{token.name}" == _FULL


def _role(name: str, privileges: list[str]) -> Step:
    return Step(
        ("pveum", "role", "add", name, "--privs", " ".join(privileges)),
        "POST", "/access/roles", (("roleid", name), ("privs", ",".join(privileges))), again="PUT",
    )  # fmt: skip


def _acl(path: str, role: str, kind: str, who: str, *, inherited: bool = True) -> Step:
    command: tuple[str, ...] = ("pveum", "acl", "modify", path)
    command += (f"--{kind}", who, "--roles", role)
    params: tuple[tuple[str, Any], ...] = (("path", path), ("roles", role), (kind, who))
    if not inherited:
        command, params = (*command, "--propagate", "0"), (*params, ("propagate", 0))
    return Step(command, "PUT", "/access/acl", params)


def apply_steps(
    api: Api, steps: Sequence[Step], *, has_token: bool
) -> Iterator[tuple[Step, str, str]]:
    """Make what is missing; yield (step, what was done, the new token's secret or nothing).

    Args:
        has_token: the token's secret is known from before.

    Raises:
        AccessDenied: after all else was made: the token is there, but its secret, which the
            server shows only once, is not known. Rejected: the server declined. Others as
            `Connection`.
    """
    secret_lost = False
    for step in steps:
        params = dict(step.params)
        try:
            answer = _send(api, step.method, step.path, params)
        except Rejected as error:
            if "already exists" not in error.text.lower():
                raise
            secret_lost = secret_lost or (step.again == "token" and not has_token)
            if step.again == "PUT":
                role = params.pop("roleid")
                api.put(f"{step.path}/{role}", **params)
                yield step, "brought up to date", ""
            else:
                yield step, "is there", ""
        else:
            secret = str(answer["value"]) if isinstance(answer, dict) and "value" in answer else ""
            yield step, "made", f"{_FULL}={secret}" if secret else ""
    if secret_lost:
        raise AccessDenied(
            f"token {_FULL} is there already, and its secret is not in the token file",
            cause="the server shows the secret once only, when the token is made",
            next_step=f"as root on a node: pveum user token remove {USER} {TOKEN_NAME}; then run "
            "this again",
        )


def _send(api: Api, method: str, path: str, params: dict[str, Any]) -> Any:
    if method == "PUT":
        return api.put(path, **params)
    return api.post(path, **params)

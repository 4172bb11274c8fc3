"""Roles, user, token, pool and ACLs that pvebench needs, as shell commands and as API calls.

All steps are repeatable: matching objects stay, different ones are corrected.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from pvebench.drivers.proxmox.api.connection import Api
from pvebench.drivers.proxmox.api.privileges import (
    AUDIT_PRIVILEGES,
    AUDIT_ROLE,
    NODE_ROLE,
    OPERATION_ROLE,
    SCRUB_PATH,
    TEMPLATE_ROLE,
    TOKEN_NAME,
    RequiredGrants,
)


@dataclass(frozen=True, slots=True, order=True)
class Acl:
    """ACL entry: path, subject, role, and whether lower paths inherit it."""

    path: str
    subject: str
    role: str
    inherited: bool = True


@dataclass(slots=True)
class ExistingGrants:
    """Existing objects and rights.

    Attributes:
        storages: storages in the pool; None: no such pool.
        separated: privilege separation of the token; None: no such token.
        acls: entries of pvebench's user and token.
    """

    roles: dict[str, set[str]] = field(default_factory=dict)
    storages: set[str] | None = None
    user: bool = False
    separated: bool | None = None
    acls: set[Acl] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class Listing:
    """Check on a node whether an object exists.

    Attributes:
        command: prints the listing, without the format option.
        key, value: member of the listing that identifies the object.
    """

    command: tuple[str, ...]
    key: str
    value: str

    @property
    def text(self) -> str:
        """Shell command that succeeds if the listing has the member."""
        literal = self.value.replace(".", "[.]")
        pattern = shlex.quote(f'"{self.key}" *: *"{literal}"')
        return f"{shlex.join(self.command)} --output-format json | grep -q {pattern}"


@dataclass(frozen=True, slots=True)
class GrantStep:
    """One idempotent step of the setup.

    Attributes:
        command: command for the node's shell.
        method, path, params: the same step at the API.
        needed: whether the step is needed, given the existing objects.
        unless: listing that shows the object if it exists; None: the command is repeatable.
    """

    command: tuple[str, ...]
    method: str
    path: str
    params: tuple[tuple[str, Any], ...]
    needed: Callable[[ExistingGrants], bool]
    unless: Listing | None = None

    @property
    def text(self) -> str:
        """Command line."""
        return shlex.join(self.command)

    def make(self, api: Api) -> Any:
        """Run the step at the API; return the response."""
        calls = {"POST": api.post, "PUT": api.put, "DELETE": api.delete}
        return calls[self.method](self.path, **dict(self.params))


def grant_steps(needed: RequiredGrants) -> list[GrantStep]:
    """Return the steps for exactly the rights that a token needs, in order."""
    roles = {role: set(privileges) for _, role, privileges, _ in needed.roles}
    steps = [step for name, privileges in roles.items() for step in _role(name, privileges)]
    steps.append(_pool(needed.pool))
    steps += [_member(needed.pool, name) for name in sorted(set(needed.storages))]
    steps += _user_and_token(needed.user)
    return steps + [_acl(entry) for entry in _acls(needed)]


def _acls(needed: RequiredGrants) -> list[Acl]:
    return [
        Acl(path, subject, role, inherited)
        for path, role, _, inherited in needed.roles
        for subject in (needed.user, needed.token)  # with privilege separation both need it
    ]


def _role(name: str, privileges: set[str]) -> list[GrantStep]:
    names = sorted(privileges)
    return [
        GrantStep(
            ("pveum", "role", "add", name),
            "POST",
            "/access/roles",
            (("roleid", name),),
            lambda grants: name not in grants.roles,
            unless=Listing(("pveum", "role", "list"), "roleid", name),
        ),
        GrantStep(
            ("pveum", "role", "modify", name, "--privs", " ".join(names)),
            "PUT",
            f"/access/roles/{name}",
            (("privs", ",".join(names)),),
            lambda grants: grants.roles.get(name) != privileges,
        ),
    ]


def _pool(name: str) -> GrantStep:
    return GrantStep(
        ("pveum", "pool", "add", name),
        "POST",
        "/pools",
        (("poolid", name),),
        lambda grants: grants.storages is None,
        unless=Listing(("pveum", "pool", "list"), "poolid", name),
    )


def _member(pool: str, storage: str, *, remove: bool = False) -> GrantStep:
    """Return the step for one storage: the server rejects a list with an existing member."""
    listing = Listing(("pvesh", "get", f"/pools/{pool}"), "storage", storage)
    return GrantStep(
        ("pveum", "pool", "modify", pool, "--storage", storage, *("--delete", "1") * remove),
        "PUT",
        "/pools",
        (("poolid", pool), ("storage", storage), *(("delete", 1),) * remove),
        lambda grants: (storage in (grants.storages or ())) is remove,
        unless=None if remove else listing,
    )


def _user_and_token(user: str) -> list[GrantStep]:
    token = ("pveum", "user", "token")
    path = f"/access/users/{user}/token/{TOKEN_NAME}"
    return [
        GrantStep(
            ("pveum", "user", "add", user),
            "POST",
            "/access/users",
            (("userid", user),),
            lambda grants: not grants.user,
            unless=Listing(("pveum", "user", "list"), "userid", user),
        ),
        GrantStep(
            (*token, "add", user, TOKEN_NAME, "--privsep", "1"),
            "POST",
            path,
            (("privsep", 1),),
            lambda grants: grants.separated is None,
            unless=Listing((*token, "list", user), "tokenid", TOKEN_NAME),
        ),
        GrantStep(
            (*token, "modify", user, TOKEN_NAME, "--privsep", "1"),
            "PUT",
            path,
            (("privsep", 1),),
            lambda grants: grants.separated is False,
        ),
    ]


def _acl(entry: Acl, *, remove: bool = False) -> GrantStep:
    kind = "tokens" if "!" in entry.subject else "users"
    command: tuple[str, ...] = ("pveum", "acl", "delete" if remove else "modify", entry.path)
    command += (f"--{kind}", entry.subject, "--roles", entry.role)
    params: tuple[tuple[str, Any], ...] = (("path", entry.path), ("roles", entry.role))
    params += ((kind, entry.subject),)
    if remove:
        params += (("delete", 1),)
    elif not entry.inherited:
        command, params = (*command, "--propagate", "0"), (*params, ("propagate", 0))
    return GrantStep(
        command, "PUT", "/access/acl", params, lambda grants: (entry in grants.acls) is remove
    )


def find_granted(api: Api, needed: RequiredGrants) -> ExistingGrants:
    """Return the existing objects; reads only. Raises as `Api`."""
    grants = ExistingGrants(
        roles={
            str(row["roleid"]): set(str(row.get("privs") or "").replace(",", " ").split())
            for row in api.get("/access/roles")
        }
    )
    if needed.pool in {row["poolid"] for row in api.get("/pools")}:
        rows = api.get(f"/pools/{needed.pool}")["members"]
        grants.storages = {str(row["storage"]) for row in rows if "storage" in row}
    grants.user = needed.user in {row["userid"] for row in api.get("/access/users")}
    if grants.user:
        tokens = api.get(f"/access/users/{needed.user}/token")
        own = (row for row in tokens if row["tokenid"] == TOKEN_NAME)
        grants.separated = next((bool(int(row.get("privsep", 1))) for row in own), None)
    for row in api.get("/access/acl"):
        if row["ugid"] in (needed.user, needed.token):
            inherited = bool(int(row.get("propagate", 1)))
            grants.acls.add(Acl(row["path"], row["ugid"], row["roleid"], inherited))
    return grants


def surplus_steps(grants: ExistingGrants, needed: RequiredGrants) -> list[GrantStep]:
    """Return the steps that remove rights and pool members which these settings do not need.

    Another pvebench may need them.
    """
    required = {(entry.path, entry.role) for entry in _acls(needed)} | {(SCRUB_PATH, NODE_ROLE)}
    required |= {(path, AUDIT_ROLE) for path in AUDIT_PRIVILEGES}
    required.add((f"/pool/{needed.pool}", OPERATION_ROLE))
    steps = [
        _acl(entry, remove=True)
        for entry in sorted(grants.acls)
        if (entry.path, entry.role) not in required and entry.role != TEMPLATE_ROLE
    ]
    return steps + [
        _member(needed.pool, name, remove=True)
        for name in sorted((grants.storages or set()) - set(needed.storages))
    ]


def no_token(user: str) -> GrantStep:
    """Return the step that removes the token with its rights; a new one has a new secret."""
    return GrantStep(
        ("pveum", "user", "token", "delete", user, TOKEN_NAME),
        "DELETE",
        f"/access/users/{user}/token/{TOKEN_NAME}",
        (),
        lambda grants: grants.separated is not None,
    )


def apply_steps(
    api: Api, needed: RequiredGrants, grants: ExistingGrants, *, new_token: bool = False
) -> Iterator[tuple[GrantStep, str]]:
    """Create missing objects; yield (step, the new token's secret or an empty string) after each.

    Args:
        new_token: replace the token; its old secret becomes invalid.

    Raises Rejected: the server rejected a step. Others as `Api`.
    """
    if new_token and (removal := no_token(needed.user)).needed(grants):
        removal.make(api)
        yield removal, ""
        grants.separated = None
        grants.acls = {entry for entry in grants.acls if entry.subject != needed.token}
    for step in grant_steps(needed):
        if step.needed(grants):
            answer = step.make(api)
            secret = answer.get("value") if isinstance(answer, dict) else None
            yield step, f"{needed.token}={secret}" if secret else ""


def shell_script(needed: RequiredGrants) -> list[str]:
    """Return the lines of a script for root on a node that stops at the first error.

    It runs in a subshell, so that it can be pasted; when repeated it corrects only differences.
    """
    version = f'case "$(pveversion)" in pve-manager/{needed.major}.*) ;; *)'
    lines = [
        "(",
        "set -e",
        f"{version} echo 'wrong Proxmox VE version: not {needed.major}; set version in settings' "
        ">&2; exit 1;; esac",
    ]
    lines += [
        f"{step.unless.text} || {step.text}" if step.unless else step.text
        for step in grant_steps(needed)
    ]
    lines.append(")")
    return lines

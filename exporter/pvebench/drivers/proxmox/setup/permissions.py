"""What an administrator makes once: role, user, token, pool and ACLs, as commands and as calls.

All of it can be done again: what is there already is left as it is, what differs is mended.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from pvebench.drivers.proxmox.api.connection import Api
from pvebench.drivers.proxmox.api.privileges import (
    EARLIER_ROLES,
    FULL_TOKEN,
    NODE_PRIVILEGES,
    NODE_ROLE,
    SCRUB_PATH,
    TOKEN_NAME,
    USER,
    VM_ROLE,
    vm_privileges,
)

_SUBJECTS: Final = {USER: "users", FULL_TOKEN: "tokens"}
"""With privilege separation a right must be given to the user and to the token: both are asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What must be there.

    Attributes:
        major: of the server's version; the right to use the guest agent has two names.
        storages: ids of the storages that are measured, and of the one for the guest's image.
        scrub_guard: also give what it takes to see that a ZFS pool is being scrubbed.
    """

    major: int
    pool: str
    storages: Sequence[str]
    scrub_guard: bool = False


@dataclass(frozen=True, slots=True)
class Acl:
    """One entry: who has which role where, and whether it holds below as well."""

    path: str
    subject: str
    role: str
    inherited: bool = True


@dataclass(slots=True)
class ExistingGrants:
    """What is there of it.

    Attributes:
        storages: members of the pool; None: there is no such pool.
        separated: of the token; None: there is no such token.
        acls: of our user and token, and of the roles of an earlier version.
    """

    roles: dict[str, set[str]] = field(default_factory=dict)
    storages: set[str] | None = None
    user: bool = False
    separated: bool | None = None
    acls: set[Acl] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class Listing:
    """Shows on a node whether something is there.

    Attributes:
        command: prints the listing; its format is not part of it.
        key, value: the member of the listing to look for.
    """

    command: tuple[str, ...]
    key: str
    value: str

    @property
    def text(self) -> str:
        """A command of the shell that succeeds if the listing has the member."""
        literal = self.value.replace(".", "[.]")
        pattern = shlex.quote(f'"{self.key}" *: *"{literal}"')
        return f"{shlex.join(self.command)} --output-format json | grep -q {pattern}"


@dataclass(frozen=True, slots=True)
class GrantStep:
    """One thing to make.

    Attributes:
        command: for the node's shell.
        method, path, params: the same at the API.
        needed: whether it is missing in what was found.
        unless: listing that has it if it is there already; None: the command can be repeated.
    """

    command: tuple[str, ...]
    method: str
    path: str
    params: tuple[tuple[str, Any], ...]
    needed: Callable[[ExistingGrants], bool]
    unless: Listing | None = None

    @property
    def text(self) -> str:
        """The command as it is typed."""
        return shlex.join(self.command)

    def make(self, api: Api) -> Any:
        """Make it at the API; return the answer."""
        calls = {"POST": api.post, "PUT": api.put, "DELETE": api.delete}
        return calls[self.method](self.path, **dict(self.params))


def grant_steps(wanted: Wanted) -> list[GrantStep]:
    """Return everything that a token needs to measure, and nothing else, in order."""
    roles = {VM_ROLE: vm_privileges(wanted.major), NODE_ROLE: set(NODE_PRIVILEGES)}
    steps = [step for name, privileges in roles.items() for step in _role(name, privileges)]
    steps.append(_pool(wanted.pool))
    steps += [_member(wanted.pool, name) for name in sorted(set(wanted.storages))]
    steps += _user_and_token()
    return steps + [_acl(entry) for entry in _acls(wanted)]


def _acls(wanted: Wanted) -> list[Acl]:
    places = [(f"/pool/{wanted.pool}", VM_ROLE, True), ("/nodes", NODE_ROLE, True)]
    if wanted.scrub_guard:
        # Rights on / reach everything below, unless they are not to be inherited.
        places.append((SCRUB_PATH, NODE_ROLE, False))
    return [
        Acl(path, subject, role, inherited)
        for path, role, inherited in places
        for subject in _SUBJECTS
    ]


def _role(name: str, privileges: set[str]) -> list[GrantStep]:
    wanted = sorted(privileges)
    return [
        GrantStep(
            ("pveum", "role", "add", name),
            "POST",
            "/access/roles",
            (("roleid", name),),
            lambda found: name not in found.roles,
            unless=Listing(("pveum", "role", "list"), "roleid", name),
        ),
        GrantStep(
            ("pveum", "role", "modify", name, "--privs", " ".join(wanted)),
            "PUT",
            f"/access/roles/{name}",
            (("privs", ",".join(wanted)),),
            lambda found: found.roles.get(name) != privileges,
        ),
    ]


def _pool(name: str) -> GrantStep:
    return GrantStep(
        ("pveum", "pool", "add", name),
        "POST",
        "/pools",
        (("poolid", name),),
        lambda found: found.storages is None,
        unless=Listing(("pveum", "pool", "list"), "poolid", name),
    )


def _member(pool: str, storage: str) -> GrantStep:
    """One storage a call: the server refuses a whole list if one of it is a member already."""
    return GrantStep(
        ("pveum", "pool", "modify", pool, "--storage", storage),
        "PUT",
        "/pools",
        (("poolid", pool), ("storage", storage)),
        lambda found: storage not in (found.storages or ()),
        unless=Listing(("pvesh", "get", f"/pools/{pool}"), "storage", storage),
    )


def _user_and_token() -> list[GrantStep]:
    token = ("pveum", "user", "token")
    path = f"/access/users/{USER}/token/{TOKEN_NAME}"
    return [
        GrantStep(
            ("pveum", "user", "add", USER),
            "POST",
            "/access/users",
            (("userid", USER),),
            lambda found: not found.user,
            unless=Listing(("pveum", "user", "list"), "userid", USER),
        ),
        GrantStep(
            (*token, "add", USER, TOKEN_NAME, "--privsep", "1"),
            "POST",
            path,
            (("privsep", 1),),
            lambda found: found.separated is None,
            unless=Listing((*token, "list", USER), "tokenid", TOKEN_NAME),
        ),
        GrantStep(
            (*token, "modify", USER, TOKEN_NAME, "--privsep", "1"),
            "PUT",
            path,
            (("privsep", 1),),
            lambda found: found.separated is False,
        ),
    ]


def _acl(entry: Acl, *, remove: bool = False) -> GrantStep:
    kind = _SUBJECTS.get(entry.subject) or ("tokens" if "!" in entry.subject else "users")
    command: tuple[str, ...] = ("pveum", "acl", "delete" if remove else "modify", entry.path)
    command += (f"--{kind}", entry.subject, "--roles", entry.role)
    params: tuple[tuple[str, Any], ...] = (("path", entry.path), ("roles", entry.role))
    params += ((kind, entry.subject),)
    if remove:
        params += (("delete", 1),)
    elif not entry.inherited:
        command, params = (*command, "--propagate", "0"), (*params, ("propagate", 0))
    return GrantStep(
        command, "PUT", "/access/acl", params, lambda found: (entry in found.acls) is remove
    )


def find_granted(api: Api, wanted: Wanted) -> ExistingGrants:
    """Return what is there; reads only. Raises as `Connection`."""
    found = ExistingGrants(
        roles={
            str(row["roleid"]): set(str(row.get("privs") or "").replace(",", " ").split())
            for row in api.get("/access/roles")
        }
    )
    if wanted.pool in {row["poolid"] for row in api.get("/pools")}:
        rows = api.get(f"/pools/{wanted.pool}")["members"]
        found.storages = {str(row["storage"]) for row in rows if "storage" in row}
    found.user = USER in {row["userid"] for row in api.get("/access/users")}
    if found.user:
        tokens = api.get(f"/access/users/{USER}/token")
        ours = (row for row in tokens if row["tokenid"] == TOKEN_NAME)
        found.separated = next((bool(int(row.get("privsep", 1))) for row in ours), None)
    for row in api.get("/access/acl"):
        if row["ugid"] in _SUBJECTS or row["roleid"] in EARLIER_ROLES:
            inherited = bool(int(row.get("propagate", 1)))
            found.acls.add(Acl(row["path"], row["ugid"], row["roleid"], inherited))
    return found


def leftovers(found: ExistingGrants, wanted: Wanted) -> tuple[list[GrantStep], list[GrantStep]]:
    """Return the steps that remove (what an earlier version left, what may be somebody's still).

    Of use to nobody are roles by the names of an earlier version. Rights on another pool, or a
    storage that these settings do not name, may be those of another pvebench.
    """
    wanted_places = {(entry.path, entry.role) for entry in _acls(wanted)} | {
        (SCRUB_PATH, NODE_ROLE)
    }
    earlier = [entry for entry in _sorted(found.acls) if entry.role in EARLIER_ROLES]
    others = [
        entry
        for entry in _sorted(found.acls)
        if entry.role not in EARLIER_ROLES and (entry.path, entry.role) not in wanted_places
    ]
    sure = [_acl(entry, remove=True) for entry in earlier]
    sure += [_no_role(name) for name in EARLIER_ROLES if name in found.roles]
    perhaps = [_acl(entry, remove=True) for entry in others]
    perhaps += [
        _no_member(wanted.pool, name)
        for name in sorted((found.storages or set()) - set(wanted.storages))
    ]
    return sure, perhaps


def other_pools(found: ExistingGrants, wanted: Wanted) -> list[str]:
    """Return the other pools on which the token has rights: another pvebench may log in with it."""
    paths = {entry.path for entry in found.acls if entry.subject == FULL_TOKEN}
    pools = {path.removeprefix("/pool/") for path in paths if path.startswith("/pool/")}
    return sorted(pools - {wanted.pool})


def _sorted(entries: set[Acl]) -> list[Acl]:
    return sorted(entries, key=lambda entry: (entry.path, entry.subject, entry.role))


def _no_role(name: str) -> GrantStep:
    return GrantStep(
        ("pveum", "role", "delete", name),
        "DELETE",
        f"/access/roles/{name}",
        (),
        lambda found: name in found.roles,
    )


def _no_member(pool: str, storage: str) -> GrantStep:
    return GrantStep(
        ("pveum", "pool", "modify", pool, "--storage", storage, "--delete", "1"),
        "PUT",
        "/pools",
        (("poolid", pool), ("storage", storage), ("delete", 1)),
        lambda found: storage in (found.storages or ()),
    )


NEW_TOKEN: Final = GrantStep(
    ("pveum", "user", "token", "delete", USER, TOKEN_NAME),
    "DELETE",
    f"/access/users/{USER}/token/{TOKEN_NAME}",
    (),
    lambda found: found.separated is not None,
)
"""Takes the token away, whose rights go with it, so that one with a new secret is made."""


def apply_steps(
    api: Api, wanted: Wanted, found: ExistingGrants, *, clean: bool = False, new_token: bool = False
) -> Iterator[tuple[GrantStep, str]]:
    """Make what is missing; yield (step, the new token's secret or nothing) after each.

    Args:
        clean: also remove what an earlier version left.
        new_token: make the token anew; its old secret is worth nothing then.

    Raises:
        Rejected: the server declined. Others as `Connection`.
    """
    if new_token and NEW_TOKEN.needed(found):
        NEW_TOKEN.make(api)
        yield NEW_TOKEN, ""
        found.separated = None
        found.acls = {entry for entry in found.acls if entry.subject != FULL_TOKEN}
    for step in grant_steps(wanted):
        if step.needed(found):
            answer = step.make(api)
            secret = answer.get("value") if isinstance(answer, dict) else None
            yield step, f"{FULL_TOKEN}={secret}" if secret else ""
    if clean:
        for step in leftovers(found, wanted)[0]:
            step.make(api)
            yield step, ""


_OF_NO_USE: Final = "left by an earlier version: pveum role delete {}"


def shell_script(wanted: Wanted) -> list[str]:
    """Return the lines of a script for root on a node, which stops at the first error.

    It runs in a shell of its own, so that it can also be pasted; run again it mends only what
    differs.
    """
    version = f'case "$(pveversion)" in pve-manager/{wanted.major}.*) ;; *)'
    lines = [
        "(",
        "set -e",
        f"{version} echo 'these are for Proxmox VE {wanted.major}: see version in the settings' "
        ">&2; exit 1;; esac",
    ]
    lines += [
        f"{step.unless.text} || {step.text}" if step.unless else step.text
        for step in grant_steps(wanted)
    ]
    for name in EARLIER_ROLES:
        there = Listing(("pveum", "role", "list"), "roleid", name)
        lines.append(f"if {there.text}; then echo {shlex.quote(_OF_NO_USE.format(name))}; fi")
    lines.append(")")
    return lines

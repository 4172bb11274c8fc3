"""Who may do what: users, tokens, privilege separation, roles, ACLs, pools."""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from pve.refusals import Refused, bad_parameter, failure, forbidden

_HEADER = re.compile(r"PVEAPIToken=(?P<user>[^!]+)!(?P<name>[^= ]+)[= ](?P<secret>\S+)\Z")
ROOT = "root@pam"
_TOP = {"/", "/access", "/access/groups", "/nodes", "/pool", "/sdn", "/storage", "/vms"}
"""Told by /access/permissions in any case."""


@dataclass
class Token:
    secret: str
    privsep: bool = True
    expire: int = 0
    comment: str = ""

    def shown(self) -> dict[str, Any]:
        comment = {"comment": self.comment} if self.comment else {}
        return {"privsep": int(self.privsep), "expire": self.expire, **comment}


@dataclass
class User:
    password: str = ""
    second_factor: str = ""
    """Of its kind, such as totp:123456."""
    enabled: bool = True
    tokens: dict[str, Token] = field(default_factory=dict)


@dataclass
class Access:
    """The whole of user.cfg. `members` returns the pools of a VM or storage path.

    A storage may be in several, whose rights add up (`compile_acl_path` in PVE/RPCEnvironment.pm).
    """

    roles: dict[str, set[str]]
    members: Callable[[str], list[str]]
    major: int = 9
    users: dict[str, User] = field(default_factory=dict)
    acl: list[tuple[str, str, str]] = field(default_factory=list)
    """(path, user or token, role)."""
    not_inherited: set[tuple[str, str, str]] = field(default_factory=set)
    """Of these, the ones that count on their own path alone."""
    tickets: dict[str, str] = field(default_factory=dict)
    challenges: dict[str, str] = field(default_factory=dict)
    """Ticket that the second factor is to be given with -> user."""

    def login(self, headers: Mapping[str, str], method: str) -> str:
        """Return the user or token of a request; 401 with an empty body otherwise."""
        match = _HEADER.match(headers.get("Authorization", ""))
        if match:
            if why := self._wrong_token(match["user"], match["name"], match["secret"]):
                raise self._no_login(why)
            return f"{match['user']}!{match['name']}"
        cookie = re.search(r"PVEAuthCookie=([^;]+)", headers.get("Cookie", ""))
        if cookie and cookie[1] in self.tickets:
            if method != "GET" and headers.get("CSRFPreventionToken") != f"csrf-{cookie[1]}":
                raise Refused(401, "Permission denied - invalid csrf token", empty=True)
            return self.tickets[cookie[1]]
        given = headers.get("Authorization", "").removeprefix("PVEAPIToken=")
        if given == headers.get("Authorization", ""):
            raise Refused(401, "No ticket", empty=True)
        user, equals, _ = given.partition("=")
        raise self._no_login(
            f"'{user}' is not a valid token ID - not able to split into user and token parts"
            if equals
            else "no tokenid specified"
        )

    def _wrong_token(self, name: str, token_name: str, secret: str) -> str:
        user = self.users.get(name)
        if user is None or not user.enabled:
            return f"no such user ('{name}')" if user is None else f"user '{name}' is disabled"
        token = user.tokens.get(token_name)
        if token is None:
            return f"no such token '{token_name}' for user '{name}'"
        if token.expire and token.expire < time.time():
            return f"token '{token_name}' access expired"
        return "" if token.secret == secret else "invalid token value!"

    def _no_login(self, why: str) -> Refused:
        """Version 9 keeps the reason to itself."""
        return Refused(401, why if self.major < 9 else "Authentication failed!", empty=True)

    def ticket(self, user: str, password: str, challenge: str = "") -> dict[str, Any]:
        """Log in as create_ticket_do of pve-access-control does.

        Who has a second factor gets a ticket that is good for one thing: to answer with.
        """
        known = self.users.get(user, User())
        if challenge:
            wanted = known.second_factor if self.challenges.pop(challenge, "") == user else ""
        else:
            wanted = known.password
        if not wanted or wanted != password:
            raise Refused(401, "authentication failure", empty=True)
        asks = bool(known.second_factor) and not challenge
        ticket = f"PVE:{'!tfa!' if asks else user}:{secrets.token_hex(8)}"
        (self.challenges if asks else self.tickets)[ticket] = user
        more = {"NeedTFA": 1} if asks else {}
        csrf = f"csrf-{ticket}"
        return {"ticket": ticket, "CSRFPreventionToken": csrf, "username": user, **more}

    def rights(self, who: str, path: str) -> set[str]:
        """Return the privileges that `who` has on `path`, through pools as well."""
        user, _, name = who.partition("!")
        everything = set().union(*self.roles.values())
        found = everything if user == ROOT else self._direct(user, path)
        if name and self.users[user].tokens[name].privsep:
            found &= self._direct(who, path)
        return found

    def _direct(self, who: str, path: str) -> set[str]:
        through = [f"/pool/{pool}" for pool in self.members(path)]
        return set().union(*(self._on_path(who, one) for one in [path, *through]))

    def _on_path(self, who: str, path: str) -> set[str]:
        """The deepest entry on the way decides, and NoAccess over what else is there."""
        best: tuple[int, set[str]] = (-1, set())
        denied = -1
        for at, subject, role in self.acl:
            if subject != who or not (at in {"/", path} or path.startswith(f"{at}/")):
                continue
            if at != path and (at, subject, role) in self.not_inherited:
                continue
            if role == "NoAccess":
                denied = max(denied, len(at))
            if role not in self.roles:
                continue  # as the real one does with what is left of a role that was removed
            if len(at) == best[0]:
                best[1].update(self.roles[role])
            elif len(at) > best[0]:
                best = (len(at), set(self.roles[role]))
        return best[1] if best[0] > denied else set()

    def need(self, who: str, path: str, privileges: Iterable[str], *, any_of: bool = False) -> None:
        """Raise 403 where rights are missing."""
        wanted = list(privileges)
        have = self.rights(who, path)
        good = any(one in have for one in wanted) if any_of else set(wanted) <= have
        if not good:
            raise forbidden(path, *(wanted if any_of else [w for w in wanted if w not in have][:1]))

    def check(self, who: str, rule: Mapping[str, Any], params: Mapping[str, Any]) -> None:
        """Apply the `permissions` of an endpoint's schema; raise 403 where they are not met.

        Only the login root@pam may do everything; a token of it is asked like any other.
        """
        if who == ROOT or rule.get("user") in ("all", "world"):
            return
        if not rule.get("check"):
            raise Refused(403, "Permission check failed (user != root@pam)")
        self._test(who, rule["check"], params)

    def _test(self, who: str, check: Sequence[Any], params: Mapping[str, Any]) -> None:
        kind, rest = check[0], check[1:]
        if kind == "and":
            for one in rest:
                self._test(who, one, params)
        elif kind == "or":
            self._any_of(who, rest, params)
        elif kind == "perm":
            options = dict(zip(rest[2::2], rest[3::2], strict=True))
            self.need(who, _filled(rest[0], params), rest[1], any_of=bool(options.get("any")))
        elif kind == "perm-modify":
            self.need_modify(who, _filled(rest[0], params))
        elif kind == "userid-group":
            self.need(who, "/access/groups", rest[0], any_of=True)
        elif rest[0] == "self":  # userid-param
            if who != params["userid"]:
                raise Refused(403, "Permission check failed")
        else:
            realm = str(params["userid"]).rpartition("@")[2]
            self.need(who, f"/access/realm/{realm}", [rest[0]])

    def _any_of(self, who: str, checks: Sequence[Any], params: Mapping[str, Any]) -> None:
        for one in checks:
            with suppress(Refused):
                self._test(who, one, params)
                return
        raise Refused(403, "Permission check failed")

    def need_modify(self, who: str, path: str) -> None:
        """Raise 403 for those who may not give rights on a path, nor add it to a pool."""
        kinds = {"storage": "Datastore.Allocate", "vms": "VM.Allocate", "pool": "Pool.Allocate"}
        kind = kinds.get(path.split("/")[1]) if path.count("/") > 1 else None
        self.need(who, path, ["Permissions.Modify", *([kind] if kind else [])], any_of=True)

    def table(self, who: str, paths: Iterable[str]) -> dict[str, dict[str, int]]:
        """Answer /access/permissions: every path that an ACL or a pool names."""
        named = {path for path, _, _ in self.acl} | set(paths) | _TOP
        found = {path: self.rights(who, path) for path in sorted(named)}
        return {
            path: {name: int(name in self._inherited(who, path)) for name in sorted(have)}
            for path, have in found.items()
            if have
        }

    def _inherited(self, who: str, path: str) -> set[str]:
        """What of the rights on a path holds for all that is below it as well."""
        return (
            self.rights(who, f"{path.rstrip('/')}/below") if who != ROOT else self.rights(who, "/")
        )

    def make_token(self, user: str, name: str, *, privsep: bool) -> str:
        if name in self.existing(user).tokens:
            raise bad_parameter({"tokenid": "Token already exists."})
        token = Token(secrets.token_hex(16), privsep=privsep)
        self.users[user].tokens[name] = token
        return token.secret

    def existing(self, user: str) -> User:
        if user not in self.users:
            raise failure(f"no such user ('{user}')")
        return self.users[user]

    def token(self, user: str, name: str) -> Token:
        if name not in self.existing(user).tokens:
            raise failure(f"no such token '{name}' for user '{user}'")
        return self.users[user].tokens[name]

    def grant(self, path: str, role: str, subjects: Iterable[str], *, inherited: bool) -> None:
        """Add users and full tokens to the ACLs."""
        for subject in subjects:
            entry = (path, subject, role)
            self.withdraw(*entry)
            self.acl.append(entry)
            if not inherited:
                self.not_inherited.add(entry)

    def refuse_unknown(self, role: str, subjects: Iterable[str]) -> None:
        if role not in self.roles:
            raise failure(f"ACL update failed: role '{role}' does not exist")
        for subject in subjects:
            user, _, name = subject.partition("!")
            if user not in self.users:
                raise failure(f"ACL update failed: user '{user}' does not exist")
            if name and name not in self.users[user].tokens:
                raise failure(f"ACL update failed: no such token '{name}' for user '{user}'")

    def withdraw(self, path: str, subject: str, role: str) -> None:
        entry = (path, subject, role)
        self.acl = [one for one in self.acl if one != entry]
        self.not_inherited.discard(entry)


def _filled(path: str, params: Mapping[str, Any]) -> str:
    return re.sub(r"\{(\w+)\}", lambda match: str(params.get(match[1], "")), path)

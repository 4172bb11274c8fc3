"""`pvebench hub`: the centre of a fleet, with PostgreSQL. Needs the extra `hub`."""

from __future__ import annotations

import secrets
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from pvebench.cli.options import format_option, listen_options, show, web_options
from pvebench.config.known_issues import load_known_issues
from pvebench.errors import PvebenchError, ToolsMissing
from pvebench.fields import MAX_NAME
from pvebench.model.units import show_seconds
from pvebench.sanitize import one_line
from pvebench.service.workers import handle_signals
from pvebench.web.request_filter import Access
from pvebench.web.server import WebServer
from pvebench.web.server import listen as open_socket
from pvebench.web.tls_and_users import exposure

if TYPE_CHECKING:
    from pvebench_fleet.hub.store.database import HubDatabase

DOOR: Final = "pvebench_door"
"""Role with the rights of `serve`; `migrate` creates it."""
JUDGE: Final = "pvebench_judge"
"""Likewise for `judge`."""
OVERVIEW: Final = "pvebench_overview"
"""Likewise for `pages`: it reads all sites."""

database_option = click.option(
    "--database",
    "url",
    envvar="PVEBENCH_HUB_DATABASE",
    default="postgresql:///pvebench",
    show_default=True,
    help="Database, as a URL of libpq.",
)


@contextmanager
def _opened(url: str, role: str = "", *others: str) -> Iterator[HubDatabase]:
    """Open the database; a wrong address, schema or role is an error now, not at a request."""
    try:
        from pvebench_fleet.hub.store.database import HubDatabase  # noqa: PLC0415 # only with the extra
    except ImportError as error:
        raise _without_extra() from error
    with closing(HubDatabase(url, role=role)) as database:
        for other in ("", *others):
            with database.connection(other):
                pass
        yield database


def _without_extra() -> PvebenchError:
    return ToolsMissing(
        "the hub needs psycopg, which is not installed",
        cause="pvebench was installed without the extra `hub`",
        next_step="install the wheel with the extra hub; see docs/fleet.md",
    )


@click.group()
def hub() -> None:
    """Run the hub of a fleet: results of many sites in PostgreSQL."""


@hub.command()
@database_option
def migrate(url: str) -> None:
    """Create the schema of the hub's database, unless it exists."""
    try:
        from pvebench_fleet.hub.store import schema  # noqa: PLC0415 # only with the extra
    except ImportError as error:
        raise _without_extra() from error
    schema.migrate(url)
    click.echo(f"schema {schema.SCHEMA}")


@hub.command()
@database_option
@listen_options("127.0.0.1:10621")
@click.option(
    "--data-directory",
    "disk",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Folder of PostgreSQL; with less than 10% of its disk free, sites keep their results.",
)
@web_options
def serve(
    url: str,
    listen: str,
    disk: Path | None,
    host_names: tuple[str, ...],
    web_config_file: Path | None,
) -> None:
    """Take the results of sites until SIGTERM or Ctrl-C."""
    with _opened(url, DOOR) as database:
        from pvebench_fleet.hub.app import has_little_space, make_app  # noqa: PLC0415 # with the extra
        from pvebench_fleet.hub.rules import Door  # noqa: PLC0415 # likewise

        door = Door(database.begin, _step)
        app = make_app(door, database, lambda: disk is not None and has_little_space(disk))
        _serve(app, listen, host_names, web_config_file)


@hub.command()
@database_option
@click.option("--role", default=OVERVIEW, show_default=True, help="Role; it limits the sites.")
@click.option(
    "--user-role",
    "roles",
    multiple=True,
    metavar="USER=ROLE",
    help="Role of a user instead of --role; other users see nothing. May be repeated.",
)
@click.option("--trusted-header", default="", help="Header of a proxy that names the user.")
@click.option(
    "--trusted-proxy",
    "proxies",
    multiple=True,
    metavar="ADDRESS",
    help="Address or network that may send --trusted-header; may be repeated.",
)
@listen_options("127.0.0.1:10622")
@web_options
def pages(
    url: str,
    role: str,
    listen: str,
    host_names: tuple[str, ...],
    web_config_file: Path | None,
    **users: Any,
) -> None:
    """Serve the pages of the fleet and its metrics until SIGTERM or Ctrl-C."""
    role_of, proxies = _users(**users, logins=web_config_file is not None)
    with _opened(url, role, *role_of.values()) as database:
        from pvebench_fleet.hub.app import FleetPages, Readers, make_pages  # noqa: PLC0415 # with extra

        issues, name = load_known_issues(), "pvebench fleet"
        shown = {one: FleetPages(database, issues, name, one) for one in role_of.values()}
        readers = Readers(
            everyone=None if role_of else FleetPages(database, issues, name),
            by_user={user: shown[one] for user, one in role_of.items()},
            header=users["trusted_header"],
            proxies=proxies,
        )
        _serve(make_pages(readers), listen, host_names, web_config_file)


def _users(
    *, roles: Sequence[str], trusted_header: str, proxies: Sequence[str], logins: bool
) -> tuple[dict[str, str], list[IPv4Network | IPv6Network]]:
    """Return the role of each user, and the trusted networks. Raises UsageError."""
    pairs = [text.partition("=") for text in roles]
    if not all(user and role for user, _, role in pairs):
        raise click.UsageError("invalid --user-role; write USER=ROLE")
    if bool(trusted_header) is not bool(proxies) or (proxies and not roles):
        raise click.UsageError("--trusted-header, --trusted-proxy and --user-role go together")
    if roles and not (trusted_header or logins):
        raise click.UsageError("--user-role needs --web.config.file with users, or a proxy")
    role_of = {user: role for user, _, role in pairs}
    if len(role_of) < len(pairs):
        raise click.UsageError("--user-role names a user twice")
    return role_of, _networks(proxies)


def _networks(proxies: Sequence[str]) -> list[IPv4Network | IPv6Network]:
    try:
        return [ip_network(text) for text in proxies]
    except ValueError as error:
        raise click.UsageError(
            f"invalid --trusted-proxy: {error}; a proxy connects by TCP, not by a Unix socket"
        ) from error


@contextmanager
def _until_stopped() -> Iterator[threading.Event]:
    stopped = threading.Event()
    with handle_signals(dict.fromkeys((signal.SIGINT, signal.SIGTERM), stopped.set)):
        yield stopped


def _serve(app: Any, listen: str, names: tuple[str, ...], web_config_file: Path | None) -> None:
    access = Access(listen, names=names, file=web_config_file)
    with _until_stopped() as stopped, WebServer(app, open_socket(listen), access):
        click.echo(f"hub on {access.scheme}://{listen}/")
        if warning := exposure(listen, web_config_file):
            click.echo(warning, err=True)
        stopped.wait()


@hub.command()
@database_option
@click.option("--once", is_flag=True, help="End when no node is due.")
def judge(url: str, once: bool) -> None:
    """Judge the results of all sites until SIGTERM or Ctrl-C.

    Start any number of these processes; each judges another node.
    """
    with _opened(url, JUDGE) as database:
        from pvebench_fleet.hub.judging import judge_all, judge_next  # noqa: PLC0415 # only with the extra

        issues = load_known_issues()
        if once:
            while judge_next(database, issues):
                pass
            return
        with _until_stopped() as stopped:
            judge_all(database, issues, stopped.wait)


def _step() -> int:
    from pvebench_fleet.hub.rules import STEP  # noqa: PLC0415 # only with the extra

    return 1 + secrets.randbelow(STEP)


@hub.command()
@database_option
@click.option(
    "--keep-months",
    type=click.IntRange(min=1),
    default=36,
    show_default=True,
    help="Months of results to keep, besides the present one.",
)
@click.option("--apply", "write", is_flag=True, help="Delete; otherwise only list.")
def prune(url: str, keep_months: int, write: bool) -> None:
    """Delete old months of results, and rows that the protocol no longer needs."""
    with _opened(url) as database:
        months = database.prune(keep_months, time.time(), apply=write)
    for month in months:
        click.echo(f"{month} {'deleted' if write else 'would be deleted; add --apply'}")
    if not months:
        click.echo(f"no month is older than {keep_months} months")


@hub.command()
@database_option
@click.pass_context
def doctor(context: click.Context, url: str) -> None:
    """Check the hub: PostgreSQL, sites, judging. Exits with code 1 on a critical finding."""
    with _opened(url) as database:
        from pvebench_fleet.hub.fleet_view import findings  # noqa: PLC0415 # only with the extra
        from pvebench_fleet.hub.store.overview import read_overview  # noqa: PLC0415 # likewise

        overview, settings = database.read(read_overview), database.settings()
        found = [*findings(overview, settings, time.time())]
    for level, text in found:
        click.echo(f"{level:8} {one_line(text)}")  # nodes have names of sites' choice
    context.exit(int(any(level == "critical" for level, _ in found)))


# --- `pvebench hub sites`


@hub.group()
def sites() -> None:
    """Manage the sites of the fleet."""


def _valid_name(_: click.Context, __: click.Parameter, name: str) -> str:
    if not 0 < len(name) <= MAX_NAME or not set(name) <= _NAME:
        raise click.BadParameter("use letters, digits, '-' and '_'")
    return name


_NAME: Final = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_")
name_argument = click.argument("name", callback=_valid_name)


@sites.command()
@database_option
@name_argument
def add(url: str, name: str) -> None:
    """Add a site, or a further token of one, and print the token once.

    The two newest tokens of a site are valid.
    """
    token = secrets.token_hex(32)
    with _opened(url) as database:
        database.add_token(name, token)
    click.echo(token)


@sites.command("list")
@database_option
@format_option()
def list_(url: str, form: str) -> None:
    """List the sites with state, last contact, runs and processes."""
    with _opened(url) as database:
        rows = database.sites()
    lines = [_site_line(row, time.time()) for row in rows]
    none = ["no sites; add one with `pvebench hub sites add NAME`"]
    show(form, lambda: rows, lambda: lines or none)


def _site_line(row: dict[str, Any], now: float) -> str:
    contact = row["contact"]
    seen = "never seen" if contact is None else f"seen {show_seconds(now - contact)} ago"
    parts = [row["name"], row["state"], seen, f"{row['runs']} runs received"]
    parts += [f"{row['refused']} lines refused"] * bool(row["refused"])
    skew = row["skew_seconds"] or 0.0
    parts += [f"clock off by {show_seconds(abs(skew))}"] * (abs(skew) > 30)
    parts += [f"processes {', '.join(row['processes'])}"] * (row["state"] == "held")
    return "  ".join(parts)


@sites.command()
@database_option
@name_argument
@click.option("--keep", metavar="PROCESS", help="End the hold: this process is the site.")
def hold(url: str, name: str, keep: str | None) -> None:
    """Hold a site, or select the process that is the site.

    `pvebench fleet status` at a machine shows its process.
    """
    with _opened(url) as database:
        if keep is None:
            database.hold(name)
            click.echo(f"{name} is held")
        elif database.keep(name, keep, _step):
            click.echo(f"{name} is process {keep}; it sends everything again")
        else:
            raise click.BadParameter(f"{name} has no process {keep!r}", param_hint="--keep")


@sites.command()
@database_option
@name_argument
@click.option("--apply", "write", is_flag=True, help="Delete; otherwise only count.")
def forget(url: str, name: str, write: bool) -> None:
    """Delete the results of a site and refuse it."""
    with _opened(url) as database:
        count = database.forget(name, apply=write)
    click.echo(f"{count} runs of {name} {'deleted' if write else 'would be deleted; add --apply'}")

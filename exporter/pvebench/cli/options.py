"""Options shared by several commands, and the resulting settings.

Help and completion need the options alone: only functions import the configuration.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click
from click.shell_completion import CompletionItem

from pvebench.cli.logs import configure_logging
from pvebench.drivers import DRIVERS
from pvebench.errors import ConfigError, MachineError, NotWritable, command_text

if TYPE_CHECKING:
    from rich.console import Console

    from pvebench.config import Settings

F = TypeVar("F", bound=Callable[..., Any])

PATH = click.Path(path_type=Path)
DEFAULT_PACK = Path("quick")
_PIPE_WIDTH: Final = 1000
_LABELS: Final = {True: "ok  ", False: "FAIL", None: "?   "}


def complete_pack(_: click.Context, __: click.Parameter, typed: str) -> list[CompletionItem]:
    """Return shell completions: names of packs, and files."""
    from pvebench.config import shipped_packs  # noqa: PLC0415 # see above

    names = [CompletionItem(name) for name in shipped_packs() if name.startswith(typed)]
    return [*names, CompletionItem(typed, type="file")]


def together(*options: Callable[[F], F]) -> Callable[[F], F]:
    """Return one decorator for several options, the last one first in the help."""

    def add(command: F) -> F:
        for option in options:
            command = option(command)
        return command

    return add


settings_options = together(
    click.option(
        "--pack",
        "packs",
        type=PATH,
        multiple=True,
        shell_complete=complete_pack,
        metavar="NAME or FILE",
        help="Pack to use instead of the settings' packs; may be repeated.",
    ),
    click.option(
        "--driver", type=click.Choice(DRIVERS.names), help="Driver that runs the workloads."
    ),
    click.option("--node", help="Label 'node' of the results."),
    click.option(
        "--state",
        type=PATH,
        envvar="PVEBENCH_STATE",
        help="Directory for results, lock and sockets.",
    ),
    click.option("--config", type=PATH, envvar="PVEBENCH_CONFIG", help="Settings file."),
)
scale_option = click.option(
    "--scale",
    type=click.FloatRange(0, 100, min_open=True),
    default=1.0,
    help="Multiply the packs' sizes and times.",
)
"""Option of commands that plan, measure, or show the definition of a measured plan."""
web_options = together(
    click.option(
        "--host-name",
        "host_names",
        multiple=True,
        metavar="NAME",
        help="Host name to accept, in addition to addresses, localhost and the machine's own "
        "name; may be repeated.",
    ),
    click.option(
        "--web.config.file",
        "web_config_file",
        type=PATH,
        help="TLS, users and headers, in the format of Prometheus' exporter-toolkit.",
    ),
)


def listen_options(default: str | None = None) -> Callable[[F], F]:
    """Return --web.listen-address and --web.systemd-socket."""
    return together(
        click.option(
            "--web.listen-address",
            "--listen",
            "listen",
            default=default,
            show_default=default is not None,
            callback=_checked_address,
            help="Listen address, such as 127.0.0.1:10620; :10620 is every address.",
        ),
        click.option(
            "--web.systemd-socket",
            "listen",
            flag_value=_PASSED,
            default=default,
            callback=_checked_address,
            help="Use the socket that systemd passes.",
        ),
    )


_PASSED = "systemd"


def _checked_address(_: click.Context, __: click.Parameter, text: str | None) -> str | None:
    """Return a listen address, also of the socket that systemd passes; raises BadParameter."""
    if text is None:
        return None
    if text == _PASSED:
        from pvebench.web.server import address_of, passed_socket  # noqa: PLC0415 # see above

        passed = passed_socket()
        if passed is None:
            message = "systemd passes no TCP socket; add a socket unit with ListenStream=10620"
            raise click.BadParameter(message)
        with passed:
            return address_of(passed)
    from pvebench.fields import listen_address  # noqa: PLC0415 # see above

    try:
        return listen_address(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


selection_options = together(
    click.option(
        "--skip", multiple=True, metavar="GLOB", help="Skip matching cases; may be repeated."
    ),
    click.option(
        "--only",
        multiple=True,
        metavar="GLOB",
        help="Use only cases with a matching scenario, workload or scenario/workload.",
    ),
)


def _log_more(context: click.Context, _: click.Parameter, requested: bool) -> None:
    """Log messages of level info too, in the log's own form."""
    if requested:
        parameters = context.find_root().params
        parameters["log_level"] = "info"
        configure_logging("info", parameters.get("log_format") or "logfmt")


verbose_option = click.option(
    "-v",
    "--verbose",
    is_flag=True,
    expose_value=False,
    callback=_log_more,
    help="Log each step to stderr too, with the details of findings.",
)


def format_option(*more: str) -> Callable[[F], F]:
    """Return --format: text or JSON, and the forms `more` of a command."""
    forms = click.Choice(["text", "json", *more])
    return click.option(
        "--format", "form", type=forms, default="text", show_default=True, help="Output format."
    )


def output_option(help_text: str, default: Path | None = None) -> Callable[[F], F]:
    """Return --output: the file to write."""
    return click.option(
        "--output", type=PATH, default=default, show_default=default is not None, help=help_text
    )


def write_output(path: Path, content: bytes, described: str) -> None:
    """Write a file and print its path. Raises NotWritable."""
    with writing(path):
        path.write_bytes(content)
    click.echo(f"wrote {path}: {described}")


@contextmanager
def writing(path: Path | None) -> Iterator[None]:
    """Raise NotWritable for an error of the file system."""
    try:
        yield
    except FileExistsError as error:
        step = "edit it, or remove it first"
        raise NotWritable(f"{path} already exists", next_step=step) from error
    except OSError as error:
        raise NotWritable(f"{path} cannot be written: {error.strerror}") from error


def make_console() -> Console:
    """Return the console of stdout. A pipe gets unwrapped lines, for grep and logs.

    Titles and names are printed verbatim: brackets in them are no markup.
    """
    from rich.console import Console  # noqa: PLC0415 # see above

    console = Console(highlight=False, markup=False)
    if console.is_terminal:
        return console
    return Console(highlight=False, markup=False, width=_PIPE_WIDTH)


def show(form: str, data: Callable[[], Any], lines: Callable[[], Iterable[str]]) -> None:
    """Print the result of a command as JSON, or as text: each line as soon as it is known."""
    if form == "json":
        click.echo(json.dumps(data(), indent=2))
        return
    for line in lines():
        click.echo(line)


def show_findings(results: Iterable[tuple[str, bool | None, str]], *, form: str = "text") -> None:
    """Print findings. Raises MachineError if a check failed."""
    checks: list[dict[str, Any]] = []

    def lines() -> Iterator[str]:
        for name, good, text in results:
            checks.append({"check": name, "ok": good, "found": command_text(text, "check")})
            yield f"{_LABELS[good]}  {name}: {checks[-1]['found']}"

    def data() -> list[dict[str, Any]]:
        return checks if list(lines()) else []

    show(form, data, lines)
    bad = [entry["check"] for entry in checks if entry["ok"] is False]
    if bad:
        raise MachineError(
            f"{len(bad)} of {len(checks)} checks failed: {', '.join(bad)}",
            next_step="fix the first failure and check again; it may cause the others",
        )


def columns(texts: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Yield a line per name."""
    return (f"{name + ':':9} {text}" for name, text in texts)


def read_settings(
    *,
    config: Path | None,
    state: Path | None,
    node: str | None,
    driver: str | None,
    packs: tuple[Path, ...],
    **web: Any,
) -> Settings:
    """Return the settings of the file, overridden by the options.

    Args:
        web: --listen and the `web_options`, if the command has them.

    Raises:
        ConfigError: the file or an option is wrong.
    """
    from pvebench.config import load_settings  # noqa: PLC0415 # see above

    settings = load_settings(config)
    options: dict[str, Any] = {
        "state": state.absolute() if state else None,
        "driver": driver,
        "packs": tuple(pack_file(pack, config) for pack in packs) or None,
        **{key: value or None for key, value in web.items()},
    }
    changes = {key: value for key, value in options.items() if value is not None}
    if node is not None:
        changes |= settings.changes_for(node)
    if not settings.packs and "packs" not in changes:
        changes["packs"] = (pack_file(DEFAULT_PACK, config),)
    return settings.with_changes(changes)


def pack_file(pack: Path, config: Path | None = None) -> Path:
    """Return the file of a pack on the command line, as `nearest_pack`.

    Raises:
        ConfigError: there is no pack of that name.
    """
    path = nearest_pack(pack, config)
    if path is None:
        from pvebench.config import unknown_pack  # noqa: PLC0415 # see above

        message = f"--pack: {unknown_pack(str(pack), _directories(config))}"
        raise ConfigError.of_options(message)
    return path


def nearest_pack(pack: Path, config: Path | None = None) -> Path | None:
    """As `find_pack`; the directory of the settings is searched before the working directory."""
    from pvebench.config import find_pack  # noqa: PLC0415 # see above

    return find_pack(pack, _directories(config), config)


def _directories(config: Path | None) -> list[Path]:
    return [*([config.parent] if config else []), Path()]


def pairs_of(option: str, texts: tuple[str, ...]) -> dict[str, str]:
    """Return the values of a repeated option FIELD=VALUE by their fields. Raises UsageError."""
    pairs: dict[str, str] = {}
    for text in texts:
        field, separator, value = (part.strip() for part in text.partition("="))
        if not (field and separator and value):
            raise click.UsageError(f"invalid {option} {text!r}; write FIELD=…")
        if field in pairs:
            raise click.UsageError(f"{option} has {field} twice; keep one of them")
        pairs[field] = value
    return pairs

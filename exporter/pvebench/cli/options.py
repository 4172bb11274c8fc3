"""Options that several commands share, and the settings that come of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem

from pvebench.config import (
    Settings,
    is_pack_name,
    load_settings,
    no_such_pack,
    pack_named,
    shipped_packs,
)
from pvebench.drivers import DRIVERS
from pvebench.errors import ConfigError, Problem

F = TypeVar("F", bound=Callable[..., Any])

PATH = click.Path(path_type=Path)
DEFAULT_PACK = Path("quick")


def complete_pack(_: click.Context, __: click.Parameter, typed: str) -> list[CompletionItem]:
    """Return what a shell may complete: names of packs, and files."""
    names = [CompletionItem(name) for name in shipped_packs() if name.startswith(typed)]
    return [*names, CompletionItem(typed, type="file")]


_SETTINGS = (
    click.option(
        "--pack",
        "packs",
        type=PATH,
        multiple=True,
        shell_complete=complete_pack,
        metavar="NAME or FILE",
        help="Pack to use instead of those of the settings; may be repeated.",
    ),
    click.option("--driver", type=click.Choice(list(DRIVERS)), help="What runs the workloads."),
    click.option("--node", help="Label 'node' of the results."),
    click.option(
        "--state",
        type=PATH,
        envvar="PVEBENCH_STATE",
        help="Directory of results, lock and sockets.",
    ),
    click.option("--config", type=PATH, envvar="PVEBENCH_CONFIG", help="Settings file."),
)


def settings_options(command: F) -> F:
    """Add --config, --state, --node, --driver and --pack."""
    for option in _SETTINGS:
        command = option(command)
    return command


scale_option = click.option(
    "--scale",
    type=click.FloatRange(0, 100, min_open=True),
    default=1.0,
    help="Multiply the packs' sizes and times.",
)
"""For commands that plan, measure, or show what a measured plan meant."""


_WEB = (
    click.option(
        "--host-name",
        "host_names",
        multiple=True,
        metavar="NAME",
        help="Name that clients may call it by, beside addresses, localhost and the machine's "
        "own name; may be repeated.",
    ),
    click.option(
        "--web.config.file",
        "web_config_file",
        type=PATH,
        help="TLS, users and headers, in the form of Prometheus' exporter-toolkit.",
    ),
)


def web_options(command: F) -> F:
    """Add --web.config.file and --host-name."""
    for option in _WEB:
        command = option(command)
    return command


def selection_options(command: F) -> F:
    """Add --only and --skip."""
    command = click.option(
        "--skip", multiple=True, metavar="GLOB", help="Leave out cases that match; may be repeated."
    )(command)
    return click.option(
        "--only",
        multiple=True,
        metavar="GLOB",
        help="Keep only cases whose scenario, workload or scenario/workload matches.",
    )(command)


json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def read_settings(
    *,
    config: Path | None,
    state: Path | None,
    node: str | None,
    driver: str | None,
    packs: tuple[Path, ...],
    **web: Any,
) -> Settings:
    """Return the settings file's settings with the options put over them.

    Args:
        web: --listen and the `web_options`, where the command has them.

    Raises:
        ConfigError: the file or an option is wrong.
    """
    settings = load_settings(config)
    given: dict[str, Any] = {
        "state": state.absolute() if state else None,
        "driver": driver,
        "packs": tuple(pack_file(pack, config) for pack in packs) or None,
        **{key: value or None for key, value in web.items()},
    }
    changes = {key: value for key, value in given.items() if value is not None}
    if node is not None:
        changes |= settings.changes_for(node)
    if not settings.packs and "packs" not in changes:
        changes["packs"] = (pack_file(DEFAULT_PACK, config),)
    return settings.with_changes(changes)


def pack_file(given: Path, config: Path | None = None) -> Path:
    """Return the file of a pack on the command line, as `nearest_pack`.

    Raises:
        ConfigError: there is no pack of that name.
    """
    found = nearest_pack(given, config)
    if found is None:
        message = f"--pack: {no_such_pack(str(given), _places(config))}"
        raise ConfigError([Problem("command line", 0, 0, message)])
    return found


def nearest_pack(given: Path, config: Path | None = None) -> Path | None:
    """Return a path as it is, and of a name the file; None: there is none.

    A file beside the settings goes first, then one in the working directory.
    """
    return pack_named(str(given), _places(config)) if is_pack_name(given) else given


def _places(config: Path | None) -> list[Path]:
    return [*([config.parent] if config else []), Path()]

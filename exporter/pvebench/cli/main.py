"""Entry point: the command group, logging, and the conversion of errors to exit codes."""

from __future__ import annotations

import builtins
import difflib
import os
import re
import sys
from importlib.metadata import EntryPoint
from importlib.util import find_spec
from keyword import iskeyword
from pathlib import Path
from typing import Final

import click
from click.shell_completion import CompletionItem

from pvebench import __version__
from pvebench.cli.logs import configure_logging
from pvebench.errors import PvebenchError, command_text
from pvebench.plugins import load, package_of, plugins, skip
from pvebench.version import commit

_LAYOUT: Final = {
    "Measure": "run serve@run status pause@control resume@control abort@control",
    "Results": "verdict view@run compare@results results report@export export "
    "baseline@verdict "
    "judge* import*",
    "Decide": "advise durability* upgrade gate@upgrade",
    "Set up": "setup check@doctor packs plan@packs schema@packs storage guest proxmox "
    "grafana@dashboards print@dashboards",
    "Fleet": "fleet* hub*",
    "Maintain": "doctor notify cleanup@control prune@database restore@database reparse@database",
    "Demo": "demo*",
}
"""Heading of the help -> its commands, with `@` and the module if it has another name; `*`: of a
plug-in, left out if it is not installed."""
GROUPS: Final = {
    heading: [re.split("[@*]", word)[0] for word in words.split()]
    for heading, words in _LAYOUT.items()
}
"""Heading of the help -> its commands."""


def _places() -> dict[str, str]:
    """Return command -> place of its function, as `module:function`: own ones, and plug-ins'."""
    points = plugins("commands")
    places = {}
    for word in " ".join(_LAYOUT.values()).split():
        name, _, module = word.partition("@")
        if not name.endswith("*"):
            places[name] = f"pvebench.cli.{module or name}:{_function(name)}"
        elif name[:-1] in points:
            places[name[:-1]] = points[name[:-1]].value
    others = {name: point.value for name, point in points.items() if "." not in name}
    return {**places, **{name: others[name] for name in sorted(others.keys() - places.keys())}}


def _function(name: str) -> str:
    reserved = iskeyword(name) or hasattr(builtins, name)
    return f"{name}_" if reserved else name


COMMANDS: Final = _places()
"""Command -> place of its function."""


_NAME_WIDTH: Final = max(map(len, COMMANDS))


# --- Commands of plug-ins, of the group `pvebench.commands`.
#
# The name of an entry point is that of the command; `export.runs` is `pvebench export runs`.


def plugin_command(point: EntryPoint) -> click.Command:
    """Return the command of a plug-in. Raises ClickException if it cannot be loaded."""
    try:
        command = point.load()
    except (Exception, SystemExit) as error:  # another package's code
        reason = skip(point, f"{type(error).__name__}: {error}").reason
        raise _not_loaded(point, reason) from error
    if not isinstance(command, click.Command):
        raise _not_loaded(point, f"{point.value} is not a click command")
    return command


def _not_loaded(point: EntryPoint, reason: str) -> click.ClickException:
    return click.ClickException(
        f"command {point.name} of package {package_of(point)} cannot be loaded: {reason}\n"
        "  next step: reinstall that package, or remove it"
    )


class PluginGroup(click.Group):
    """Group of commands to which plug-ins add others."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the group's own commands and those of plug-ins."""
        prefix = f"{self.name}."
        added = (
            name.removeprefix(prefix) for name in plugins("commands") if name.startswith(prefix)
        )
        return [*super().list_commands(ctx), *added]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command, which is imported when it is used; None: unknown."""
        point = plugins("commands").get(f"{self.name}.{cmd_name}")
        return super().get_command(ctx, cmd_name) or (plugin_command(point) if point else None)


# --- The command group.


class _Commands(click.Group):
    """Command group that imports a command on use, so that quick commands start quickly."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        point = plugins("commands").get(cmd_name)
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = plugin_command(point) if point else load(COMMANDS[cmd_name])
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command; for an unknown one suggest the nearest. Raises UsageError."""
        near = difflib.get_close_matches(args[0], COMMANDS, n=1)
        if args[0] not in COMMANDS and near:
            raise click.UsageError(f"No such command {args[0]!r}. Did you mean {near[0]!r}?", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands by group, each with its whole summary."""
        listed = {name for names in GROUPS.values() for name in names}
        others = [name for name in COMMANDS if name not in listed]
        for heading, group in {**GROUPS, "Plug-ins": others}.items():
            names = [name for name in group if name in COMMANDS]
            if names:
                with formatter.section(heading):
                    formatter.write_dl([(name.ljust(_NAME_WIDTH), summary(name)) for name in names])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return options and commands, with their summaries."""
        names = [name for name in COMMANDS if name.startswith(incomplete)]
        items = [CompletionItem(name, help=summary(name)) for name in names]
        return [*items, *click.Command.shell_complete(self, ctx, incomplete)]


def summary(command: str) -> str:
    """Return the summary in a command's docstring, from its source: importing all takes seconds."""
    module, _, function = COMMANDS[command].partition(":")
    try:
        spec = find_spec(module)
    except ImportError:  # a plug-in that is damaged
        return ""
    source = Path(spec.origin).read_text("utf-8") if spec and spec.origin else ""
    docstring = re.compile(rf'^def {function}\(.*?^    """(.+?\.)["\s]', re.MULTILINE | re.DOTALL)
    found = docstring.search(source)
    return found[1] if found else ""


def example(context: click.Context) -> str:
    """Return an example of a command: its own one, or one with what it requires."""
    words = [context.command_path]
    for parameter in context.command.params if not context.command.epilog else ():
        if parameter.required:
            words += [*parameter.opts[:1]] if isinstance(parameter, click.Option) else []
            words.append(parameter.make_metavar(context).strip("<>{}").split("|")[0])
    return context.command.epilog or f"Example: {' '.join(words)}"


def _show_version(context: click.Context, _: click.Parameter, requested: bool) -> None:
    if requested and not context.resilient_parsing:
        click.echo(f"pvebench {__version__} ({commit() or 'unknown commit'})")
        context.exit()


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_version,
    help="Print version and commit.",
)
@click.option(
    "--log.level",
    "log_level",
    default="warning",
    type=click.Choice(["debug", "info", "warning", "error"]),
    help="Minimum level of logged messages.",
)
@click.option(
    "--log.format",
    "log_format",
    type=click.Choice(["text", "logfmt", "json"]),
    help="Format of the log on stderr; default: text on a terminal, else logfmt.",
)
def cli(log_level: str, log_format: str | None) -> None:
    """Benchmark VM storage continuously and export the results to Prometheus."""
    configure_logging(log_level, log_format)


def main() -> None:
    """Run the command line; exit with the exit code of an error."""
    sys.exit(run_cli(sys.argv[1:]))


def run_cli(arguments: list[str]) -> int:
    """Return the exit code for `arguments`; print errors on stderr."""
    try:
        # A command may return its exit code, such as `verdict` for regressions.
        code = cli.main(arguments, prog_name="pvebench", standalone_mode=False)
    except PvebenchError as error:
        command = next(filter(COMMANDS.__contains__, arguments), "")
        click.echo(f"pvebench: {command_text(str(error), command)}", err=True)
        return error.exit_code
    except click.ClickException as error:
        error.show()
        if isinstance(error, click.MissingParameter) and error.ctx is not None:
            click.echo(f"\n{example(error.ctx)}", err=True)
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return 130
    except BrokenPipeError:
        # The reader closed the pipe.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return code if isinstance(code, int) else 0

"""Entry point: the command group, logging, and the one place that turns errors into exit codes."""

from __future__ import annotations

import builtins
import os
import sys
from importlib import import_module
from keyword import iskeyword
from typing import Final

import click

from pvebench import __version__
from pvebench.errors import PvebenchError
from pvebench.version import commit

COMMANDS: Final = {
    "abort": "control",
    "baseline": "baseline",
    "card": "export",
    "check": "doctor",
    "cleanup": "control",
    "demo": "demo",
    "doctor": "doctor",
    "export": "export",
    "grafana": "dashboards",
    "guest": "guest",
    "import": "import_",
    "judge": "verdict",
    "notify": "notify",
    "packs": "packs",
    "pause": "control",
    "plan": "packs",
    "print": "dashboards",
    "proxmox": "proxmox",
    "prune": "database",
    "reparse": "database",
    "report": "export",
    "results": "results",
    "restore": "database",
    "resume": "control",
    "run": "run",
    "schema": "packs",
    "selftest": "doctor",
    "serve": "run",
    "setup": "setup",
    "storage": "storage",
    "verdict": "verdict",
}
"""Command -> the module below `pvebench.cli` with the function of its name."""


QUIET: Final = frozenset({"packs", "plan", "schema"})
"""Commands that log nothing: they are waited for, and need not load the logging."""


class _Commands(click.Group):
    """The commands, imported only when they are used: a quick command must start quickly."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        pythons_own = iskeyword(cmd_name) or hasattr(builtins, cmd_name)
        name = f"{cmd_name}_" if pythons_own else cmd_name
        module = import_module(f"pvebench.cli.{COMMANDS[cmd_name]}")
        found: click.Command = getattr(module, name)
        return found


def _show_version(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted and not context.resilient_parsing:
        click.echo(f"pvebench {__version__} ({commit() or 'commit not known'})")
        context.exit()


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_version,
    help="Print the version and the commit that it was made of.",
)
@click.option(
    "--log.level",
    "log_level",
    default="warning",
    type=click.Choice(["debug", "info", "warning", "error"]),
    help="Least severe message to log.",
)
@click.option(
    "--log.format",
    "log_format",
    default="logfmt",
    type=click.Choice(["logfmt", "json"]),
    help="Form of the log on stderr.",
)
@click.pass_context
def cli(context: click.Context, log_level: str, log_format: str) -> None:
    """Measure what virtual disks deliver on this storage, again and again."""
    if context.invoked_subcommand not in QUIET:
        import_module("pvebench.cli.logs").configure_logging(log_level, log_format)


def main() -> None:
    """Run the command line; exit with the code of the error tree."""
    sys.exit(run_cli(sys.argv[1:]))


def run_cli(arguments: list[str]) -> int:
    """Return the exit code for `arguments`; print errors on stderr."""
    try:
        # A command that has an answer beside its output gives it as the exit code.
        answer = cli.main(arguments, prog_name="pvebench", standalone_mode=False)
    except PvebenchError as error:
        click.echo(f"pvebench: {error}", err=True)
        return error.exit_code
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return 130
    except BrokenPipeError:
        # The reader of a pipe has gone; nobody is left to be told.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return answer if isinstance(answer, int) else 0

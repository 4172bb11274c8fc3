"""Entry point: the command group, logging, and the conversion of errors to exit codes."""

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
"""Command -> module below `pvebench.cli` with a function of the same name."""


QUIET: Final = frozenset({"packs", "plan", "schema"})
"""Commands that log nothing: loading the logging would delay their output."""


class _Commands(click.Group):
    """Command group that imports a command on use, so that quick commands start quickly."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        reserved = iskeyword(cmd_name) or hasattr(builtins, cmd_name)
        name = f"{cmd_name}_" if reserved else cmd_name
        module = import_module(f"pvebench.cli.{COMMANDS[cmd_name]}")
        command: click.Command = getattr(module, name)
        return command


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
    default="logfmt",
    type=click.Choice(["logfmt", "json"]),
    help="Format of the log on stderr.",
)
@click.pass_context
def cli(context: click.Context, log_level: str, log_format: str) -> None:
    """Benchmark VM storage continuously and export the results to Prometheus."""
    if context.invoked_subcommand not in QUIET:
        import_module("pvebench.cli.logs").configure_logging(log_level, log_format)


def main() -> None:
    """Run the command line; exit with the exit code of an error."""
    sys.exit(run_cli(sys.argv[1:]))


def run_cli(arguments: list[str]) -> int:
    """Return the exit code for `arguments`; print errors on stderr."""
    try:
        # A command may return its exit code, such as `verdict` for regressions.
        code = cli.main(arguments, prog_name="pvebench", standalone_mode=False)
    except PvebenchError as error:
        click.echo(f"pvebench: {error}", err=True)
        return error.exit_code
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return 130
    except BrokenPipeError:
        # The reader closed the pipe.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return code if isinstance(code, int) else 0

"""Entry point: the command group, logging, and the one place that turns errors into exit codes."""

from __future__ import annotations

import logging
import os
import sys

import click
import structlog

from pvebench import __version__
from pvebench.cli.check import check
from pvebench.cli.guest import guest
from pvebench.cli.looking import packs, plan, results
from pvebench.cli.running import run, serve
from pvebench.cli.schema import schema
from pvebench.errors import PvebenchError


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="pvebench")
@click.option(
    "--log.level", "log_level", default="warning",
    type=click.Choice(["debug", "info", "warning", "error"]), help="Least severe message to log.",
)  # fmt: skip
@click.option(
    "--log.format", "log_format", default="logfmt", type=click.Choice(["logfmt", "json"]),
    help="Form of the log on stderr.",
)  # fmt: skip
def cli(log_level: str, log_format: str) -> None:
    """Measure what virtual disks deliver on this storage, again and again."""
    _configure_logging(log_level, log_format)


for command in (check, guest, packs, plan, results, run, schema, serve):
    cli.add_command(command)


def _configure_logging(level: str, form: str) -> None:
    renderer = (
        structlog.processors.JSONRenderer()
        if form == "json"
        else structlog.processors.LogfmtRenderer(key_order=["timestamp", "level", "event"])
    )
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        # Looked up for every message: stderr may be another one by then, in tests it is.
        logger_factory=lambda *_: structlog.PrintLogger(sys.stderr),
    )


def main() -> None:
    """Run the command line; exit with the code of the error tree."""
    sys.exit(run_cli(sys.argv[1:]))


def run_cli(arguments: list[str]) -> int:
    """Return the exit code for `arguments`; print errors on stderr."""
    try:
        cli.main(arguments, prog_name="pvebench", standalone_mode=False)
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
    return 0

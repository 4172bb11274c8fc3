"""Commands of plug-ins, of the group `pvebench.commands`.

The name of an entry point is that of the command; `export.runs` is `pvebench export runs`.
"""

from __future__ import annotations

from importlib.metadata import EntryPoint

import click

from pvebench.plugins import package_of, plugins, skip


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

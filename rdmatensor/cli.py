# SPDX-License-Identifier: Apache-2.0
"""The command line `rdmatensor`, which imports a command when it is used.

TensorFlow, RDMA and even the compiled library may be missing. The list of commands and `doctor` need none of
them.
"""

from __future__ import annotations

import importlib
from typing import Any

from ._api.extras import remedy

try:
    import click
except ImportError:
    raise SystemExit(
        "rdmatensor: the command line needs click and rich: pip install 'click>=8' 'rich>=13'"
    ) from None

# The function of each command, and its line in the list.
COMMANDS = {
    "doctor": ("._tools.commands.doctor:doctor", "Check this machine, with a remedy for each fault."),
    "launch": ("._tools.commands.launch:launch", "Run a program as the tasks of a TensorFlow cluster."),
    "ping": ("._tools.commands.ping:ping", "Measure the connection to another machine."),
    "plan": ("graph_analyzer.cli:plan", "Show what a graph sends between tasks, and how."),
    "simulate": (".simulate.cli:simulate", "Compare synchronizers on simulated clusters."),
    "softroce": (".softroce.cli:softroce", "Test RDMA programs on machines without RDMA."),
    "topology": ("._tools.commands.topology:topology", "Show links, and trees that fill them."),
    "top": ("._tools.commands.top:top", "Watch running tasks: peers, bytes by path, waits."),
}  # fmt: skip


class _Commands(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*COMMANDS]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, _, name = COMMANDS[cmd_name][0].partition(":")
        try:
            command: click.Command = getattr(importlib.import_module(module, __package__), name)
        except ImportError as error:
            if ctx.resilient_parsing:  # a shell is completing a line
                return None
            raise _lacking(error) from error
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except ImportError as error:
            raise _lacking(error) from error


def _lacking(error: ImportError) -> click.ClickException:
    found = remedy(error)
    if found and found in str(error):
        return click.ClickException(str(error))
    return click.ClickException(f"{error}: {found or 'run rdmatensor doctor'}")


@click.group(cls=_Commands, invoke_without_command=True)
@click.pass_context
def main(context: click.Context) -> None:
    """RDMA memory for Python, and grpc+rdma for TensorFlow.

    Without a command, this is `rdmatensor doctor --info`.

    \b
    Examples:
      rdmatensor doctor              check this machine
      rdmatensor ping --listen       on one machine, then
      rdmatensor ping HOST           on another, to measure the connection
      rdmatensor launch -n 4 train.py
    """
    if context.invoked_subcommand is None:
        command = main.get_command(context, "doctor")
        if command:
            context.invoke(command, info=True)

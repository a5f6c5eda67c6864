# SPDX-License-Identifier: Apache-2.0
"""The command line `rdmatensor`."""

from __future__ import annotations

import click

from .softroce.cli import softroce


class _Commands(click.Group):
    """Imports the analyzer's command only when it is asked for: others work without the library."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*super().list_commands(ctx), "plan"]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name == "plan":
            from graph_analyzer.cli import plan

            return plan
        return super().get_command(ctx, cmd_name)


@click.group(cls=_Commands, invoke_without_command=True)
@click.pass_context
def main(context: click.Context) -> None:
    """RDMA memory for Python, and grpc+rdma for TensorFlow.

    Without a command: what is installed, and the settings in force.
    """
    if context.invoked_subcommand is None:
        from . import about

        about.show()


main.add_command(softroce)

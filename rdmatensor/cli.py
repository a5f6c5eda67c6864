# SPDX-License-Identifier: Apache-2.0
"""The command line `rdmatensor`."""

from __future__ import annotations

import click

from .softroce.cli import softroce


@click.group(invoke_without_command=True)
@click.pass_context
def main(context: click.Context) -> None:
    """RDMA memory for Python, and grpc+rdma for TensorFlow.

    Without a command: what is installed, and the settings in force.
    """
    if context.invoked_subcommand is None:
        from . import about

        about.show()


main.add_command(softroce)

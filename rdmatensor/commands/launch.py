# SPDX-License-Identifier: Apache-2.0
"""`rdmatensor launch`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("-n", "--workers", metavar="N", type=click.IntRange(1, 256), default=1,
              show_default=True, help="Start so many workers.")  # fmt: skip
@click.option("--ps", metavar="N", type=click.IntRange(0, 256), default=0, show_default=True,
              help="Start so many parameter servers.")  # fmt: skip
@click.option("--chief/--no-chief", default=None,
              help="Start a chief besides the workers. Default: only with parameter servers.")  # fmt: skip
@click.option("--protocol", type=click.Choice(["grpc+rdma", "grpc"]), default="grpc+rdma",
              show_default=True, help="The protocol in TF_CONFIG.")  # fmt: skip
@click.option("--metrics-port", metavar="PORT", type=click.IntRange(0, 65535), default=0,
              help="Serve metrics of the tasks at PORT, PORT + 1, ..., for `rdmatensor top`.")  # fmt: skip
@click.argument("script", type=click.Path(path_type=Path))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def launch(chief: bool | None, **options: Any) -> None:
    """Run SCRIPT ARGUMENTS as all tasks of a TensorFlow cluster on this machine.

    Each task is a process that reads its role from TF_CONFIG, as on a cluster. Its output lines begin with
    "[worker 0] " and so on. If a task fails, all tasks are ended. The exit status is 0, or that of the first
    task that failed; it is 128 plus the signal if a signal ended the task.

    Parameter servers are ended once all other tasks have ended. With a chief, so are workers, because they
    only serve it.

    \b
    Examples:
      rdmatensor launch -n 4 train.py --steps 100
      rdmatensor launch -n 2 --ps 1 --protocol grpc train.py
      rdmatensor launch -n 2 --metrics-port 9100 train.py &
      rdmatensor top 9100-9101
    """
    from .._ops import launch as launcher

    request = launcher.Request(chief=options["ps"] > 0 if chief is None else chief, **options)
    why_not = launcher.check(request.script) or launcher.check_metrics(request)
    if why_not:
        raise click.UsageError(why_not)
    sys.exit(launcher.run(request, lambda line: click.echo(f"rdmatensor launch: {line}", err=True)))

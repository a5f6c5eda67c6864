# SPDX-License-Identifier: Apache-2.0
"""`rdmatensor place`."""

from __future__ import annotations

import os
from typing import NoReturn

import click


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("--ps", metavar="N", type=click.IntRange(0, 4096), default=0, show_default=True,
              help="Number of parameter servers; with them, rank 0 is the chief.")  # fmt: skip
@click.option("--port", metavar="PORT", type=click.IntRange(1, 65535), default=2222, show_default=True,
              help="Port of the first task on each host.")  # fmt: skip
@click.option("--protocol", type=click.Choice(["grpc+rdma", "grpc"]), default="grpc+rdma",
              show_default=True, help="The protocol in TF_CONFIG.")  # fmt: skip
@click.option("--keep", is_flag=True,
              help="Keep the current TF_CONFIG and add the protocol; takes no HOST.")  # fmt: skip
@click.argument("words", metavar="[HOST,HOST,...] PROGRAM [ARGUMENTS]...", nargs=-1,
                type=click.UNPROCESSED)  # fmt: skip
def place(ps: int, port: int, protocol: str, keep: bool, words: tuple[str, ...]) -> NoReturn:
    """Run PROGRAM as one task of a cluster that Slurm, MPI or Kubernetes starts.

    The launcher starts a process on each machine and sets its rank. This command sets TF_CONFIG accordingly
    and runs the program in its place. HOSTs are those of ranks 0, 1, ... All ranks are workers. With --ps N,
    rank 0 is the chief, the next N ranks are parameter servers, and the others are workers.

    Use --keep if the launcher sets TF_CONFIG itself, as Kubeflow does. A protocol in it is kept.

    \b
    Examples:
      srun rdmatensor place "$hosts" python train.py
      mpirun --host a,b,c,d -N 1 rdmatensor place --ps 1 a,b,c,d python train.py
      rdmatensor place --keep python train.py
    """
    from .. import place as places
    from ..tf_config import NAME, with_protocol

    hosts, program = ([], words) if keep else (words[:1], words[1:])
    if not program:
        raise click.UsageError(
            "expected PROGRAM" if keep or hosts else "expected HOSTs and PROGRAM"
        )
    try:
        if keep:
            config = with_protocol(os.environ.get(NAME, ""), protocol)
        else:
            rank = places.rank_in(os.environ)
            config = places.config_of(hosts[0].split(","), rank, ps, port, protocol)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    if not config:
        raise click.UsageError(f"--keep needs {NAME}, which is not set: give HOSTs instead")
    os.environ[NAME] = config
    try:
        os.execvp(program[0], program)
    except OSError as error:
        raise click.ClickException(f"cannot run {program[0]}: {error.strerror}") from None

# SPDX-License-Identifier: Apache-2.0
"""`rdmatensor place`."""

from __future__ import annotations

import os
from typing import NoReturn

import click


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("--ps", metavar="N", type=click.IntRange(0, 4096), default=0, show_default=True,
              help="Parameter servers; with them, rank 0 is a chief.")  # fmt: skip
@click.option("--port", metavar="PORT", type=click.IntRange(1, 65535), default=2222, show_default=True,
              help="Of a host's first task.")  # fmt: skip
@click.option("--protocol", type=click.Choice(["grpc+rdma", "grpc"]), default="grpc+rdma",
              show_default=True, help="What the program is told in TF_CONFIG.")  # fmt: skip
@click.option("--keep", is_flag=True,
              help="Keep the TF_CONFIG that is set, and add the protocol: no HOSTs.")  # fmt: skip
@click.argument("words", metavar="[HOST,HOST,...] PROGRAM [ARGUMENTS]...", nargs=-1,
                type=click.UNPROCESSED)  # fmt: skip
def place(ps: int, port: int, protocol: str, keep: bool, words: tuple[str, ...]) -> NoReturn:
    """Run PROGRAM as one task of a cluster that Slurm, MPI or Kubernetes starts.

    They start a process on each machine and tell it its rank; this command makes TF_CONFIG of it and becomes
    the program. HOSTs are those of the ranks 0, 1, ... All ranks are workers; with --ps N, rank 0 is the
    chief, the next N are parameter servers, and the others workers.

    With --keep the launcher has set TF_CONFIG itself, as Kubeflow does; a protocol that it names stays.

    \b
    Examples:
      srun rdmatensor place "$hosts" python train.py
      mpirun --host a,b,c,d -N 1 rdmatensor place --ps 1 a,b,c,d python train.py
      rdmatensor place --keep python train.py
    """
    from .._ops import place as places
    from .._ops.tf_config import NAME, with_protocol

    hosts, program = ([], words) if keep else (words[:1], words[1:])
    if not program:
        raise click.UsageError(
            "a program is needed" if keep or hosts else "hosts and a program are needed"
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
        raise click.UsageError(f"--keep, and {NAME} is not set: name the hosts")
    os.environ[NAME] = config
    try:
        os.execvp(program[0], program)
    except OSError as error:
        raise click.ClickException(f"cannot run {program[0]}: {error.strerror}") from None

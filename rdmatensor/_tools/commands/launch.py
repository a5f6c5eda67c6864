# SPDX-License-Identifier: Apache-2.0
"""`rdmatensor launch`."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

if TYPE_CHECKING:
    from ..launch import Request


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("-n", "-np", "--workers", metavar="N", type=click.IntRange(1, 256),
              help="Start so many workers. Default: 1, or all other tasks of the hosts.")  # fmt: skip
@click.option("--ps", metavar="N", type=click.IntRange(0, 256), default=0, show_default=True,
              help="Start so many parameter servers.")  # fmt: skip
@click.option("--chief/--no-chief", default=None,
              help="Start a chief besides the workers. Default: only with parameter servers.")  # fmt: skip
@click.option("--protocol", type=click.Choice(["grpc+rdma", "grpc"]), default="grpc+rdma",
              show_default=True, help="The protocol in TF_CONFIG.")  # fmt: skip
@click.option("--jax", is_flag=True,
              help="Run JAX's collective operations on CPUs over rdmatensor: SCRIPT calls "
                   "jax.distributed.initialize() without arguments.")  # fmt: skip
@click.option("--metrics-port", metavar="PORT", type=click.IntRange(0, 65535), default=0,
              help="Serve metrics of the tasks at PORT, PORT + 1, ..., for `rdmatensor top`.")  # fmt: skip
@click.option("--grace", metavar="SECONDS", type=click.FloatRange(0), default=30.0, show_default=True,
              help="Send tasks that have to end SIGTERM, and SIGKILL so much later; at once at a second "
                   "Ctrl-C.")  # fmt: skip
@click.option("--restarts", metavar="N", type=click.IntRange(0), default=0, show_default=True,
              help="Start tasks that fail anew, N times in all, while the others go on: for programs that "
                   "outlive processes, such as those with hvd.elastic.")  # fmt: skip
@click.option("--hosts", metavar="HOST,...",
              help="Start the tasks on these hosts. HOST is a name for ssh, or NAME=ADDRESS if the others "
                   "know it by another address.")  # fmt: skip
@click.option("--tasks-per-host", metavar="N", type=click.IntRange(1, 256), default=1, show_default=True,
              help="Tasks on each host.")  # fmt: skip
@click.option("-H", "slots", metavar="HOST:N,...",
              help="Start N workers on each host, one host after the other, as horovodrun does.")  # fmt: skip
@click.option("--hostfile", metavar="FILE", type=click.Path(exists=True, dir_okay=False),
              help="Read the hosts of -H from lines `HOST slots=N`.")  # fmt: skip
@click.option("--port", metavar="PORT", type=click.IntRange(1, 65535), default=2222, show_default=True,
              help="TensorFlow's port on each host; its other tasks use the following ports.")  # fmt: skip
@click.option(
    "--ssh", metavar="COMMAND", help="Command that runs a program on a host, instead of ssh."
)
@click.option(
    "--python", metavar="PATH", help="Python of the hosts. Default: the path of this Python."
)
@click.option("--place", metavar="HOST,...",
              help="Become the task of the rank that Slurm, MPI or Kubernetes has given to this process; the "
                   "HOSTs are those of ranks 0, 1, ...")  # fmt: skip
@click.argument(
    "program", metavar="SCRIPT [ARGUMENTS]...", nargs=-1, required=True, type=click.UNPROCESSED
)
@click.pass_context
def launch(
    context: click.Context,
    /,
    chief: bool | None,
    place: str | None,
    program: tuple[str, ...],
    **options: Any,
) -> None:
    """Run SCRIPT ARGUMENTS as all tasks of a TensorFlow cluster, on this machine or on several hosts.

    Instead of SCRIPT, you can write -m MODULE, or a whole command of Python, such as `python -u SCRIPT`.

    Each task is a process that reads its role from TF_CONFIG, as on a cluster. Its output lines begin with
    "[worker 0] " and so on. If a task fails and is not started anew, all tasks are ended. The exit status is
    0, or that of this task; it is 128 plus the signal if a signal ended the task.

    Parameter servers are ended once all other tasks have ended. With a chief, so are workers, because they
    only serve it.

    With --hosts, the program runs in the same folder on each host, with the same environment. The hosts get
    tasks in turn: parameter servers, then workers, then the chief. No task outlives the launcher or its
    connection.

    With --place, this process becomes the task of its rank. All ranks are workers. With --ps N, rank 0 is the
    chief, the next N ranks are parameter servers, and the others are workers. SCRIPT may be any program. With
    --place TF_CONFIG, as under Kubeflow, the protocol is added to TF_CONFIG unless it names one.

    \b
    Examples:
      rdmatensor launch -n 4 train.py --steps 100
      rdmatensor launch -n 2 --ps 1 --protocol grpc train.py
      rdmatensor launch -n 2 --metrics-port 9100 train.py &
      rdmatensor top 9100-9101
      rdmatensor launch --hosts node1,node2=10.0.0.2 train.py
      rdmatensor launch -n 4 -m package.train --steps 100
      rdmatensor launch --jax -n 4 train.py
      rdmatensor launch -np 8 -H node1:4,node2:4 train.py
      srun rdmatensor launch --place "$hosts" train.py
      mpirun --host a,b,c,d -N 1 rdmatensor launch --place a,b,c,d --ps 1 train.py
    """
    if place is not None:
        _become(context, place, program, options["ps"], options["port"], options["protocol"])
    from .. import launch as launcher

    python, words = launcher.python_of(program)
    options["python"] = options["python"] or python
    options["program"] = words
    request = _request(options["ps"] > 0 if chief is None else chief, **options)
    why_not = (
        launcher.check(words)
        or launcher.check_jax(request)
        or launcher.check_metrics(request)
        or launcher.check_ports(request)
    )
    if why_not:
        raise click.UsageError(why_not)
    sys.exit(launcher.run(request, lambda line: click.echo(f"rdmatensor launch: {line}", err=True)))


def _become(
    context: click.Context, place: str, program: tuple[str, ...], ps: int, port: int, protocol: str
) -> NoReturn:
    """Run the program as the task of this process's rank, in this process."""
    from .. import place as places
    from ..launch import command_of
    from ..tf_config import NAME

    given = click.core.ParameterSource.COMMANDLINE
    for parameter in context.command.params:
        if (
            parameter.name not in ("place", "ps", "port", "protocol", "program")
            and context.get_parameter_source(parameter.name or "") == given
        ):
            raise click.UsageError(f"{parameter.opts[-1]} starts tasks, which --place does not")
    try:
        os.environ[NAME] = places.config_in(os.environ, place, ps, port, protocol)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    command = command_of(program)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        raise click.ClickException(f"cannot run {command[0]}: {error.strerror}") from None


def _request(
    chief: bool,
    hosts: str | None,
    tasks_per_host: int,
    slots: str | None,
    hostfile: str | None,
    **options: Any,
) -> Request:
    from ..launch import Request
    from ..remote import parse_hosts, parse_slots, slots_in

    given = {name: value for name, value in options.items() if value is not None}
    if sum(each is not None for each in (hosts, slots, hostfile)) > 1:
        raise click.UsageError("give one of --hosts, -H and --hostfile")
    try:
        if hosts:
            places = parse_hosts(hosts) * tasks_per_host
        else:
            if hostfile:
                slots = slots_in(Path(hostfile).read_text())
            places = parse_slots(slots) if slots is not None else []
    except (ValueError, OSError) as error:
        raise click.UsageError(f"hosts: {error}") from None
    if slots is not None and all(each.name in ("localhost", "127.0.0.1") for each in places):
        if options["workers"] is None:
            given["workers"] = len(places)
        if given["workers"] > len(places):
            raise click.UsageError(
                f"{given['workers']} tasks are needed, but localhost has {len(places)} slots"
            )
        places = []
    if not places:
        return Request(**{"workers": 1, **given}, chief=chief)
    left = len(places) - options["ps"] - chief
    request = Request(**{"workers": left, **given}, chief=chief, hosts=places)
    if left < 1 or len(request.tasks) > len(places):
        needed = max(len(request.tasks), options["ps"] + chief + 1)
        raise click.UsageError(
            f"{needed} tasks are needed, but the hosts have {len(places)}: name more hosts, or raise "
            "--tasks-per-host, or the slots of -H"
        )
    return replace(request, hosts=places[: len(request.tasks)])

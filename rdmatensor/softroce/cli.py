# SPDX-License-Identifier: Apache-2.0
"""The command line `rdmatensor softroce`: run, shell, doctor and fetch."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Callable
from functools import reduce
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import click

from .errors import LabError, Unavailable
from .lab import MEMORY, MOST_HOSTS, MTU

EXIT_LAB_FAILED = 125


def say(line: str) -> None:
    """Print a message of the lab to standard error, apart from the output of commands."""
    click.echo(f"rdmatensor softroce: {line}", err=True)


def end_on_signals() -> None:
    """Make SIGTERM and SIGHUP exit with clean-up, as Ctrl-C does."""

    def leave(number: int, frame: FrameType | None) -> NoReturn:
        raise SystemExit(128 + number)

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, leave)


def guarded(body: Callable[[], int]) -> NoReturn:
    """Exit with the status from `body`, with 125 and a message if the lab fails, or with 130 on Ctrl-C."""
    end_on_signals()
    try:
        status = body()
    except LabError as error:
        say(str(error))
        status = EXIT_LAB_FAILED
    except KeyboardInterrupt:
        status = 128 + signal.SIGINT
    sys.exit(status)


_MACHINE = (
    click.option("--memory", metavar="MB", default=MEMORY, show_default=True,
                 help="Memory of each host."),
    click.option("--cpus", metavar="N", type=int, help="Processors of each host. Default: at most 2."),
    click.option("--mtu", metavar="BYTES", default=MTU, show_default=True, help="MTU of eth0."),
    click.option("--shared", metavar="DIR", type=click.Path(exists=True, file_okay=False, path_type=Path),
                 help="A folder that hosts can write to. RDMATENSOR_LAB_SHARED holds its path."),
    click.option("--env", metavar="NAME[=VALUE]", multiple=True,
                 help="Pass one more variable to the command, which gets PATH, HOME, PYTHONPATH, "
                 "RDMATENSOR_* and similar ones anyway. Repeatable."),
)  # fmt: skip


def machine_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that describe hosts."""
    return reduce(lambda made, option: option(made), reversed(_MACHINE), command)


@click.group()
def softroce() -> None:
    """Test RDMA programs on machines without RDMA.

    SoftRoCE is RDMA in software: real verbs over an ordinary network card. The lab uses the running kernel's
    SoftRoCE if there is one. Otherwise it boots a small virtual machine on top of this machine's files, which
    takes seconds.

    \b
    Examples:
      rdmatensor softroce run -- rdmatensor doctor
      rdmatensor softroce run --hosts 2 -- python program.py
      rdmatensor softroce shell
    """


@softroce.command(context_settings={"ignore_unknown_options": True})
@click.option("--hosts", metavar="N", type=click.IntRange(1, MOST_HOSTS), default=1, show_default=True,
              help="Run the command once in each of N hosts.")  # fmt: skip
@click.option("--timeout", metavar="S", type=float, help="Kill the command after S seconds.")
@click.option("--native", "mode", flag_value="native", help="Use only this kernel's own SoftRoCE.")
@click.option("--qemu", "mode", flag_value="qemu", help="Always use a virtual machine.")
@machine_options
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def run(
    command: tuple[str, ...],
    env: tuple[str, ...],
    hosts: int,
    timeout: float | None,
    mode: str | None,
    **machine: Any,
) -> None:
    """Run COMMAND on a host with a SoftRoCE device.

    By default, it runs on this machine if the kernel has SoftRoCE, and in a virtual machine otherwise. The
    exit status is the command's, 124 after a time-out, or 125 if the lab failed. Standard input is empty.
    In a virtual machine, what the command writes outside of the shared folder is lost.

    With several hosts, RDMATENSOR_LAB_RANK is the number of this host and RDMATENSOR_LAB_ADDRESSES lists the
    addresses of all. Output lines of all hosts but the first begin with "[1] ", "[2] " and so on. The exit
    status is the first one that is not 0, in the order of ranks.
    """
    from . import run as runner

    guarded(
        lambda: runner.run(
            command,
            runner.variables(env),
            say,
            hosts=hosts,
            timeout=timeout,
            mode=mode,
            machine=machine,
        )
    )


@softroce.command()
@machine_options
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def shell(command: tuple[str, ...], env: tuple[str, ...], **machine: Any) -> None:
    """Open a shell in a virtual machine.

    The virtual machine has a SoftRoCE device. With COMMAND, runs that instead of a shell, with this terminal.
    """
    from . import shell as interactive
    from .lab import Lab
    from .run import variables

    def body() -> int:
        chosen = variables(env)
        with Lab(**machine, say=say) as lab:
            return interactive.interact(lab.hosts[0], list(command) or ["bash", "-i"], chosen)

    guarded(body)


@softroce.command()
def doctor() -> None:
    """Check whether `run` works here.

    Prints what to do if it does not. The exit status is 0 if it works and 1 if something is missing.
    """
    from .doctor import examine

    guarded(examine)


@softroce.command()
@click.option("--again", is_flag=True, help="Replace the cached kernel by the newest one.")
def fetch(again: bool) -> None:
    """Download the guest's kernel now. Later runs need no network."""
    from . import emulator, kernel, qemu

    def body() -> int:
        with contextlib.suppress(Unavailable):  # QEMU can be installed later
            emulator.ensure(not qemu.kvm_problem(), say)
        found = kernel.ensure(say, again)
        click.echo(f"{found.release} in {found.image.parent}")
        return 0

    guarded(body)

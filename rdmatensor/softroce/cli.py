# SPDX-License-Identifier: Apache-2.0
"""`rdmatensor softroce`: run, shell, doctor, fetch."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import click

from .errors import LabError, Unavailable
from .lab import MEMORY, MOST_HOSTS, MTU

EXIT_LAB_FAILED = 125


def say(line: str) -> None:
    """A line about the lab itself, kept apart from what commands print."""
    click.echo(f"rdmatensor softroce: {line}", err=True)


def end_on_signals() -> None:
    """Turns SIGTERM and SIGHUP into an exit that cleans up, as Ctrl-C is one."""

    def leave(number: int, frame: FrameType | None) -> NoReturn:
        raise SystemExit(128 + number)

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, leave)


def guarded(body: Callable[[], int]) -> NoReturn:
    """Exits with what `body` returns; 125 and one message when the lab fails, 130 on Ctrl-C."""
    end_on_signals()
    try:
        status = body()
    except LabError as error:
        say(str(error))
        status = EXIT_LAB_FAILED
    except KeyboardInterrupt:
        status = 128 + signal.SIGINT
    sys.exit(status)


def machine_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options that describe hosts."""
    options = [
        click.option(
            "--memory", metavar="MB", default=MEMORY, show_default=True, help="Of each host."
        ),
        click.option("--cpus", metavar="N", type=int, help="Of each host. Default: at most 2."),
        click.option("--mtu", metavar="BYTES", default=MTU, show_default=True, help="Of eth0."),
        click.option(
            "--shared",
            metavar="DIR",
            type=click.Path(exists=True, file_okay=False, path_type=Path),
            help="A folder that hosts may write; its path is in RDMATENSOR_LAB_SHARED.",
        ),
        click.option(
            "--env",
            metavar="NAME[=VALUE]",
            multiple=True,
            help="A variable for the command, besides PATH, HOME, PYTHONPATH, RDMATENSOR_* and the "
            "like. Repeatable.",
        ),
    ]
    for option in reversed(options):
        command = option(command)
    return command


@click.group()
def softroce() -> None:
    """Test RDMA programs on machines without RDMA.

    SoftRoCE is RDMA in software: real verbs over an ordinary network card. Where the running kernel has
    it, it is used; elsewhere a small virtual machine boots in seconds, on top of this machine's files.

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
@click.option("--native", "mode", flag_value="native", help="Only with this kernel's own SoftRoCE.")
@click.option("--qemu", "mode", flag_value="qemu", help="Always in a virtual machine.")
@click.option("--auto", "mode", flag_value="auto", default="auto",
              help="Native where it is possible. The default.")  # fmt: skip
@machine_options
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def run(**options: Any) -> None:
    """Run COMMAND where there is a SoftRoCE device, rxe0.

    Its exit status is the command's; 124 when it ran out of time, 125 when the lab failed. Standard
    input is empty. What the command writes outside of the shared folder is gone afterwards.

    With several hosts, each learns its place from RDMATENSOR_LAB_RANK and everybody's address from
    RDMATENSOR_LAB_ADDRESSES. Lines of hosts other than the first are marked "[1] " and so on; the exit
    status is the first that is not 0, in the order of ranks.
    """
    from . import run as runner

    guarded(lambda: runner.run(runner.Request.of(options), say))


@softroce.command()
@machine_options
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def shell(**options: Any) -> None:
    """Open a shell, or run COMMAND with this terminal, in a virtual machine with SoftRoCE."""
    from . import shell as interactive
    from .lab import Lab
    from .run import variables

    def body() -> int:
        env = variables(options["env"])
        machine = {name: options[name] for name in ("memory", "cpus", "mtu", "shared")}
        with Lab(**machine, say=say) as lab:
            command = list(options["command"]) or ["bash", "-i"]
            return interactive.interact(lab.hosts[0], command, env)

    guarded(body)


@softroce.command()
def doctor() -> None:
    """Tell whether `run` works here, and what to do when it does not.

    Exit status 0 when it works, 1 when something is missing.
    """
    from .doctor import examine

    guarded(examine)


@softroce.command()
@click.option("--again", is_flag=True, help="Even when there is one: for a newer kernel.")
def fetch(again: bool) -> None:
    """Download the guest's kernel now, so that later runs need no network."""
    from . import emulator, initramfs, kernel, qemu

    def body() -> int:
        with contextlib.suppress(Unavailable):  # it can be installed later
            emulator.ensure(not qemu.kvm_problem(), say)
        found = kernel.ensure(say, again)
        initramfs.ensure(found)
        click.echo(f"{found.release} in {found.image.parent}")
        return 0

    guarded(body)

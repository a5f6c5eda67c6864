# SPDX-License-Identifier: Apache-2.0
"""Processes of this machine that train together, and that a benchmark asks in lines of JSON."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from programs import free_port

Members = list[subprocess.Popen[str]]


@contextlib.contextmanager
def started(
    program: Path,
    count: int,
    settings: Mapping[str, str] = {},
    python: str = sys.executable,
    place: Callable[[int], list[str]] = lambda rank: [],
) -> Iterator[Members]:
    """Starts `count` processes of the program, which find each other by their environment. They are killed at
    the end. A rank's command line begins with its `place`."""
    variables = {
        "WORLD_SIZE": str(count),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "RDMATENSOR_LOG_LEVEL": "error",
        "TF_CPP_MIN_LOG_LEVEL": "2",
        # Threads that sleep at an emulated link must not keep layers from computing.
        "TF_NUM_INTEROP_THREADS": "16",
        **settings,
    }
    inherited = {name: value for name, value in os.environ.items() if name != "TF_CONFIG"}
    members = [
        subprocess.Popen(
            [*place(rank), python, str(program)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=inherited | variables | {"RANK": str(rank)},
        )
        for rank in range(count)
    ]
    try:
        yield members
    finally:
        for member in members:
            member.kill()
            member.communicate()


def await_ready(members: Members) -> None:
    """Waits until each member has printed "ready"."""
    for member in members:
        assert member.stdout is not None
        while (line := member.stdout.readline()).strip() != "ready":
            if not line:
                raise click.ClickException("a process ended before it was ready")


def ask(members: Members, order: Any) -> list[Any]:
    """Gives all members the same order, and returns their answers."""
    for member in members:
        assert member.stdin is not None
        member.stdin.write(json.dumps(order) + "\n")
        member.stdin.flush()
    answers = []
    for member in members:
        assert member.stdout is not None
        line = member.stdout.readline()
        if not line:
            raise click.ClickException("a process ended during a case")
        answers.append(json.loads(line))
    return answers

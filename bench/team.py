# SPDX-License-Identifier: Apache-2.0
"""Processes of a benchmark, which it asks over connections of their own; member.py is their end."""

from __future__ import annotations

import contextlib
import itertools
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import click

from rdmatensor._tools.processes import Crew, Process, ending, free_addresses
from rdmatensor.units import binary_size

HERE = Path(__file__).resolve().parent
PATIENCE_S = 120.0  # the longest silence: all tasks import TensorFlow at once
_LOOK_S = 0.2


class Failed(click.ClickException):
    """A program did not do its part of a measurement."""


class Task:
    """One end of a connection to a process, whose output goes to `log`."""

    def __init__(
        self,
        name: str,
        process: Process,
        log: Path,
        listener: socket.socket,
        team: list[Task],
    ) -> None:
        self.name, self.process, self._log, self._listener = name, process, log, listener
        self._team = team
        self._line: Connection | None = None

    def send(self, command: str, **fields: Any) -> None:
        """Give an order. If the process is gone, `answer` reports it."""
        assert self._line is not None
        with contextlib.suppress(OSError):
            self._line.send((command, fields))

    def answer(self, patience: float = PATIENCE_S) -> Any:
        """What it answers, or "ready" at first.

        Failed if any task of the team ends, or this one says nothing for `patience` seconds.
        """
        deadline = time.monotonic() + patience
        while time.monotonic() < deadline:
            try:
                if self._line is None:
                    self._line = Connection(self._listener.accept()[0].detach())
                if self._line.poll(_LOOK_S):
                    return self._line.recv()
            except (EOFError, ConnectionError):
                with contextlib.suppress(Exception):
                    self.process.wait(_LOOK_S)
                status = self.process.poll()
                how = "hung up" if status is None else ending(status)
                raise self._failed(how) from None
            except TimeoutError:
                pass
            for each in self._team:
                status = each.process.poll()
                if status is not None and not (self._line and self._line.poll()):
                    raise each._failed(ending(status))
        raise self._failed(f"said nothing for {patience:.0f} s")

    def ask(self, command: str, patience: float = PATIENCE_S, **fields: Any) -> Any:
        """Its answer to an order."""
        self.send(command, **fields)
        return self.answer(patience)

    def hang_up(self) -> None:
        """Let it end."""
        if self._line is not None:
            self._line.close()

    def _failed(self, how: str) -> Failed:
        tail = self._log.read_text(errors="replace").splitlines()[-40:]
        return Failed("\n".join([f"{self.name} {how}; the end of its output:", *tail]))


class Team:
    """Processes that live until the end of the block, in which the last ones to hang up are killed."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="rdt-bench-"))
        self._crew = Crew()
        self._numbers = itertools.count()
        self.tasks: list[Task] = []

    def __enter__(self) -> Team:
        return self

    def __exit__(self, *_: object) -> None:
        for task in self.tasks:
            task.hang_up()
        with self._crew:
            self._crew.stop(lambda process: None)
        shutil.rmtree(self._folder)

    def drop(self, task: Task) -> None:
        """End a task before the others."""
        task.hang_up()
        self._crew.wait(task.process)
        self.tasks.remove(task)

    def start(
        self,
        name: str,
        command: Sequence[object],
        environment: Mapping[str, str] = {},
        connections: int = 0,
    ) -> list[Task]:
        """Run a program that serves one connection; or `connections`, of which each adds its rank."""
        number = next(self._numbers)
        address, log = self._folder / f"{number}.", self._folder / f"{number}.log"
        listeners = []
        for rank in map(str, range(connections)) if connections else [""]:
            listener = socket.socket(socket.AF_UNIX)
            listener.bind(f"{address}{rank}")
            listener.listen()
            listener.settimeout(_LOOK_S)
            listeners.append(listener)
        with log.open("wb") as file:
            process = self._crew.run(
                [str(word) for word in command],
                {**environment, "BENCH_ADDRESS": str(address)},
                file.fileno(),
                file.fileno(),
            )
        made = [
            Task(f"{name}{n or ''}", process, log, each, self.tasks)
            for n, each in enumerate(listeners)
        ]
        self.tasks += made
        return made

    def members(
        self,
        program: str,
        count: int,
        settings: Mapping[str, str] = {},
        python: str = sys.executable,
        place: Callable[[int], Sequence[str]] = lambda rank: (),
        words: Sequence[object] = (),
    ) -> Members:
        """Start `count` processes of bench/`program`.py, which find each other by their environment.

        A rank's command line begins with its `place`, and ends with `words`.
        """
        variables = {
            "WORLD_SIZE": str(count),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(free_port()),
            "RDMATENSOR_LOG_LEVEL": "error",
            "TF_CPP_MIN_LOG_LEVEL": "2",
            "TF_CONFIG": "",
            # Threads that sleep at an emulated link must not keep layers from computing.
            "TF_NUM_INTEROP_THREADS": "16",
            **settings,
        }
        tasks = []
        for rank in range(count):
            command = [*place(rank), python, HERE / f"{program}.py", *words]
            tasks += self.start(f"{program} {rank}", command, variables | {"RANK": str(rank)})
        return Members(tasks)


class Case(NamedTuple):
    """An operation on `nbytes` bytes of each process. A sample is the mean of `calls` calls back to back."""

    kind: str
    nbytes: int
    samples: int
    calls: int

    @property
    def name(self) -> str:
        """As --only knows it."""
        return f"{self.kind} {binary_size(self.nbytes)}"


class Members(list[Task]):
    """Tasks that get the same orders."""

    def __init__(self, tasks: Sequence[Task]) -> None:
        super().__init__(tasks)
        for task in self:
            task.answer()

    def ask(self, command: str, patience: float = PATIENCE_S, **fields: Any) -> list[Any]:
        """The answers of all to a command, on which they work at the same time."""
        for task in self:
            task.send(command, **fields)
        return [task.answer(patience) for task in self]

    def slowest(self, command: str, patience: float = PATIENCE_S, **fields: Any) -> list[float]:
        """Of answers that are the seconds of several steps, those of the slowest member in each step."""
        return [max(each) for each in zip(*self.ask(command, patience, **fields), strict=True)]

    def turn(self, case: Case, patience: float = PATIENCE_S, **fields: Any) -> list[float]:
        """Samples of a case, in seconds of a call, after one that compiles and warms the caches."""
        order = {"kind": case.kind, "nbytes": case.nbytes, "calls": case.calls, **fields}
        self.slowest("steps", patience, count=1, **order)
        times = self.slowest("steps", patience, count=case.samples, **order)
        return [seconds / case.calls for seconds in times]


@contextlib.contextmanager
def members(program: str, count: int, *more: Any, **settings: Any) -> Iterator[Members]:
    """Members in a team of their own: see Team.members."""
    with Team() as team:
        yield team.members(program, count, *more, **settings)


def free_port() -> int:
    """A port of this machine at which nothing listens now."""
    return int(free_addresses(1)[0].rpartition(":")[2])

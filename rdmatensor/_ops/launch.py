# SPDX-License-Identifier: Apache-2.0
"""`rdmatensor launch`: the tasks of a TensorFlow cluster as processes of this machine. See docs/launch.md."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import queue
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from rich.console import Console
from rich.text import Text

from . import tf_config
from .processes import Crew, Process, ending, reserved_addresses
from .tf_config import Task

EXIT_SIGNAL = 128
_COLOURS = ("cyan", "green", "magenta", "yellow", "blue", "red")
# A longer line, such as that of a progress bar, is passed on in pieces.
_LONGEST_LINE = 1 << 16
_OUTPUT_S = 5.0
# Like `python SCRIPT`, but with metrics. `python -m` would also search the current folder for rdmatensor.
_SERVED = "import sys; sys.path[:] = filter(None, sys.path); from rdmatensor import metrics; "
_SERVED += "metrics.run(sys.argv[1:])"


@dataclass(frozen=True)
class Request:
    """The program, which runs as `python SCRIPT ARGUMENTS` in each task, and the tasks."""

    script: Path
    arguments: Sequence[str]
    workers: int
    ps: int
    chief: bool
    protocol: str
    metrics_port: int = 0
    """The port of the first task; the other tasks use the following ports. 0 serves no metrics."""

    @property
    def tasks(self) -> list[Task]:
        """The tasks of the cluster. Those that others wait for come first."""
        counts = {"ps": self.ps, "worker": self.workers, "chief": int(self.chief)}
        return [Task(job, index) for job, count in counts.items() for index in range(count)]

    def serves(self, task: Task) -> bool:
        """Whether a task serves others, and so is ended once they have ended.

        Parameter servers do. With parameter servers and a chief, so do workers, as in
        ParameterServerStrategy.
        """
        return task.job == "ps" or (task.job == "worker" and self.chief and self.ps > 0)


# A task and its exit status; or no task, and a signal to this program.
_Ends = queue.SimpleQueue[tuple[Task | None, int]]


class _Output:
    """Standard output or error of this program, which gets the lines of the tasks one at a time."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._console = Console(stderr=descriptor == 2)
        self._lock = threading.Lock()

    def prefix(self, task: Task, colour: str) -> bytes:
        """The beginning of a task's lines, in its colour on a terminal."""
        with self._console.capture() as written:
            self._console.print(Text(f"[{task.name}]", style=colour), end=" ")
        return written.get().encode()

    def carry(self, pipe: BinaryIO, prefix: bytes) -> None:
        """Copy lines until the pipe ends. If nothing reads our output any more, they are discarded."""
        while line := pipe.readline(_LONGEST_LINE):
            data = memoryview(prefix + line + (b"" if line.endswith(b"\n") else b"\n"))
            with self._lock, contextlib.suppress(OSError):
                while data:
                    data = data[os.write(self._descriptor, data) :]


def _start(crew: Crew, request: Request, addresses: Sequence[str]) -> dict[Task, Process]:
    cluster = tf_config.cluster_of(request.tasks, addresses)
    started = {}
    program = [str(request.script), *request.arguments]
    for number, task in enumerate(request.tasks):
        config = tf_config.text_for(cluster, task, request.protocol)
        variables = {tf_config.NAME: config, "PYTHONUNBUFFERED": "1"}
        if request.metrics_port:
            variables["RDMATENSOR_METRICS_PORT"] = str(request.metrics_port + number)
        process = crew.start(
            ["-c", _SERVED, *program] if request.metrics_port else program, variables
        )
        assert process.stdin is not None
        process.stdin.close()
        started[task] = process
    return started


def _follow(started: Mapping[Task, Process]) -> list[threading.Thread]:
    """Start threads that pass on the output of the tasks."""
    outputs = [_Output(1), _Output(2)]
    threads = []
    for number, (task, process) in enumerate(started.items()):
        colour = _COLOURS[number % len(_COLOURS)]
        for output, pipe in zip(outputs, (process.stdout, process.stderr), strict=True):
            arguments = (pipe, output.prefix(task, colour))
            threads.append(threading.Thread(target=output.carry, args=arguments, daemon=True))
    for thread in threads:
        thread.start()
    return threads


@contextlib.contextmanager
def _signals_as_ends(ends: _Ends) -> Iterator[None]:
    """Within the block, put signals that would end this program into `ends`, so that the tasks are ended.

    Signals that are ignored, as under `nohup` and in background jobs, remain ignored.
    """
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.getsignal(number) for number in numbers}
    heard = {number: each for number, each in before.items() if each != signal.SIG_IGN}
    for number in heard:
        signal.signal(number, lambda number, _: ends.put((None, number)))
    try:
        yield
    finally:
        for number, handler in heard.items():
            signal.signal(number, handler)


def _wait_for(
    crew: Crew, request: Request, started: Mapping[Task, Process], ends: _Ends
) -> tuple[int, str]:
    """Wait until all tasks that end by themselves have ended, or one has failed.

    The result is the exit status and its reason.
    """

    def wait(task: Task, process: Process) -> None:
        ends.put((task, crew.wait(process)))

    for task, process in started.items():
        threading.Thread(target=wait, args=(task, process), daemon=True).start()
    running = {task for task in started if not request.serves(task)}
    while running:
        ended, status = ends.get()
        if ended is None:
            return EXIT_SIGNAL + status, signal.Signals(status).name
        if status:
            return EXIT_SIGNAL - status if status < 0 else status, f"{ended.name} {ending(status)}"
        running.discard(ended)
    return 0, ""


def run(request: Request, say: Callable[[str], None]) -> int:
    """Run the tasks to their end, with "[worker 0] " and so on before their output. Returns the exit status.

    It is 0 if no task failed, otherwise that of the first task that failed; or 128 plus the signal that
    ended a task or this program. No process stays behind. `say` gets messages for the user. Call it in the
    main thread. OSError if there is no port or no process for a task.
    """
    ends: _Ends = queue.SimpleQueue()
    with _signals_as_ends(ends):
        with reserved_addresses(len(request.tasks)) as addresses, Crew() as crew:
            started = _start(crew, request, addresses)
            threads = _follow(started)
            status, why = _wait_for(crew, request, started, ends)
            if why:
                say(f"{why}; all tasks are ended")
        deadline = time.monotonic() + _OUTPUT_S
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
    return status


def check(script: Path) -> str:
    """Why a file cannot be run; "" if it can."""
    if not script.exists():
        return f"{script} does not exist"
    if not script.is_file() or not os.access(script, os.R_OK):
        return f"{script} is not a readable file"
    return ""


def check_metrics(request: Request) -> str:
    """Why the tasks cannot serve their metrics; "" if they can, or need not."""
    if not request.metrics_port:
        return ""
    if request.metrics_port + len(request.tasks) - 1 > 65535:
        return f"--metrics-port {request.metrics_port}: there are too few ports above it"
    if importlib.util.find_spec("prometheus_client") is None:
        return "--metrics-port needs prometheus-client: pip install 'rdmatensor[metrics]'"
    return ""

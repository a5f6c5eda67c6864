# SPDX-License-Identifier: Apache-2.0
"""`rdmatensor launch`: the tasks of a TensorFlow cluster as processes, here or on several hosts."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import queue
import re
import secrets
import shutil
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from rich.console import Console
from rich.text import Text

from . import remote, tf_config
from .place import addresses_of
from .processes import Crew, Process, ending, reserved_addresses, terminate
from .remote import Connection, Host
from .tf_config import Task

EXIT_SIGNAL = 128
_COLOURS = ("cyan", "green", "magenta", "yellow", "blue", "red")
# A longer line is passed on in pieces.
_LONGEST_LINE = 1 << 16
# The end of a line, or of a state of a line that the next one replaces, such as a progress bar.
_END = re.compile(rb"\r?\n|\r(?=[^\n])")
_ERASE = b"\r\x1b[K"
_OUTPUT_S = 5.0
# Like `python SCRIPT`, but with metrics, or with JAX over rdmatensor. `python -m` would also search the
# current folder for rdmatensor.
_SERVED = "import sys; sys.path[:] = filter(None, sys.path); from rdmatensor import {0}; "
_SERVED += "{0}.run(sys.argv[1:])"
# JAX allocates each result anew, and the kernel provides large pages much faster than as many small ones.
LARGE_PAGES = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
_PYTHON = re.compile(r"python(\d+(\.\d+)?t?)?")
# Options of Python that name what to run.
_RUN = ("-m", "-c")


@dataclass(frozen=True)
class Request:
    """The program and the tasks, each of which runs it."""

    program: Sequence[str]
    """What follows `python` in its command line: a script or a module, and arguments."""
    workers: int
    ps: int
    chief: bool
    protocol: str
    metrics_port: int = 0
    """The port of the first task; the other tasks use the following ports. 0 serves no metrics."""
    hosts: Sequence[Host] = ()
    """The host of each task, in the order of `tasks`; none: all tasks are here."""
    port: int = 2222
    """The port of the first task of each host."""
    grace: float = 30.0
    """Seconds between SIGTERM and SIGKILL."""
    ssh: str = remote.SSH
    python: str = sys.executable
    jax: bool = False
    """Whether the tasks run JAX over rdmatensor."""
    restarts: int = 0
    """How many times in all a task that has failed is started anew."""

    @property
    def tasks(self) -> list[Task]:
        """The tasks of the cluster. Those that others wait for come first."""
        counts = {"ps": self.ps, "worker": self.workers, "chief": int(self.chief)}
        return [Task(job, index) for job, count in counts.items() for index in range(count)]

    def serves(self, task: Task) -> bool:
        """Return whether a task serves others, and so is ended once they have ended.

        Parameter servers do. With parameter servers and a chief, so do workers, as in
        ParameterServerStrategy.
        """
        return task.job == "ps" or (task.job == "worker" and self.chief and self.ps > 0)

    def command(self, number: int) -> tuple[list[str], dict[str, str]]:
        """Return what follows `python` for a task, by its number, and variables of its environment."""
        words = list(self.program)
        variables: dict[str, str] = {}
        if self.metrics_port or self.jax:
            before = _options(words)
            code = _SERVED.format("jax" if self.jax else "metrics")
            words[before:before] = ["-c", code]
        if self.jax and not os.environ.keys() & LARGE_PAGES:
            variables |= LARGE_PAGES
        if self.metrics_port:
            variables["RDMATENSOR_METRICS"] = str(self.metrics_port + number)
        return words, variables


# A task, its exit status and what is wrong with its host; or no task, and a signal to this program.
_Ends = queue.SimpleQueue[tuple[Task | None, int, str]]
# Who has one of these set wants no secret for this run.
_SECRETS = {"RDMATENSOR_SECRET_FILE", "RDMATENSOR_INSECURE"}


class _Output:
    """Standard output or error of this program, which gets the lines of the tasks one at a time.

    On a terminal, a line that is written again and again, such as a progress bar, stays the last one.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._console = Console(stderr=descriptor == 2)
        self._lock = threading.Lock()
        self._bar = False  # the last line may be replaced

    def prefix(self, task: Task, colour: str) -> bytes:
        """Return the beginning of a task's lines, in its colour on a terminal."""
        with self._console.capture() as written:
            self._console.print(Text(f"[{task.name}]", style=colour), end=" ")
        return written.get().encode()

    def carry(
        self, pipe: BinaryIO, prefix: bytes, read: Callable[[bytes], bytes] | None = None
    ) -> None:
        """Copy lines until the pipe ends. If nothing reads our output any more, they are discarded.

        `read` gets each line, and returns what of it to pass on.
        """
        for line in _pieces(pipe):
            if read and not (line := read(line)):
                continue
            bar = line.endswith(b"\r")
            text = line.rstrip(b"\r\n").strip(b"\b")  # Keras goes back before it writes anew
            if bar and not (text and self._console.is_terminal):
                continue
            data = prefix + text + (b"" if bar else b"\n")
            with self._lock, contextlib.suppress(OSError):
                left = memoryview(_ERASE + data if self._bar else data)
                self._bar = bar
                while left:
                    left = left[os.write(self._descriptor, left) :]


def _pieces(pipe: BinaryIO) -> Iterator[bytes]:
    """Yield what a task writes, in pieces that end as _END says, until the pipe ends."""
    rest = b""
    while data := os.read(pipe.fileno(), _LONGEST_LINE):
        rest += data
        end = 0
        for found in _END.finditer(rest):
            begin, end = end, found.end()
            yield rest[begin:end]
        rest = rest[end:]
        if len(rest) >= _LONGEST_LINE:
            yield rest
            rest = b""
    if rest:
        yield rest


@dataclass
class _Started:
    """A running task. `connection` is None for a task of this machine."""

    process: Process
    connection: Connection | None
    readers: list[threading.Thread] = field(default_factory=list)

    def follow(self, outputs: Sequence[_Output], task: Task, colour: str) -> None:
        """Start threads that pass on the output."""
        reads = (None, self.connection.read if self.connection else None)
        pipes = (self.process.stdout, self.process.stderr)
        for output, pipe, read in zip(outputs, pipes, reads, strict=True):
            arguments = (pipe, output.prefix(task, colour), read)
            self.readers.append(threading.Thread(target=output.carry, args=arguments, daemon=True))
            self.readers[-1].start()

    def join(self) -> None:
        """Wait for the end of the output, which processes that the task left behind may delay."""
        deadline = time.monotonic() + _OUTPUT_S
        for reader in self.readers:
            reader.join(max(0.0, deadline - time.monotonic()))

    def wait(self, crew: Crew) -> tuple[int, str]:
        """Wait for the end: the exit status, and "" or what is wrong with the host."""
        status = crew.wait(self.process)
        if self.connection is None:
            return status, ""
        self.join()
        return self.connection.outcome(status)


class _Tasks:
    """The running tasks of a request, each of which can be started anew. Not thread-safe."""

    def __init__(self, crew: Crew, request: Request, addresses: Sequence[str]) -> None:
        self._crew = crew
        self._request = request
        self._cluster = tf_config.cluster_of(request.tasks, addresses)
        self._secret = "" if os.environ.keys() & _SECRETS else secrets.token_hex(32)
        self._outputs = [_Output(1), _Output(2)]
        self.started: dict[Task, _Started] = {}

    def start(self, task: Task) -> _Started:
        """Start a task. Raises OSError if there is no process for it."""
        request, crew = self._request, self._crew
        number = request.tasks.index(task)
        arguments, variables = request.command(number)
        config = tf_config.text_for(self._cluster, task, request.protocol)
        variables |= {tf_config.NAME: config, "PYTHONUNBUFFERED": "1"}
        variables |= tf_config.rank_variables(self._cluster, task)
        if request.hosts:
            host = request.hosts[number]
            # In the source folder, Python would import the sources, which are not built.
            agent = remote.command(request.ssh, host, request.python)
            each = _Started(crew.run(agent, {}, folder="/"), Connection(host))
            order = remote.order(arguments, variables, self._secret, request.grace)
            _send(each.process, order)
        else:
            each = _Started(crew.run([request.python, *arguments], variables), None)
            _hang_up(each.process)
        each.follow(self._outputs, task, _COLOURS[number % len(_COLOURS)])
        self.started[task] = each
        return each


def _send(process: Process, data: bytes) -> None:
    assert process.stdin is not None
    with contextlib.suppress(OSError):  # if it has ended, its output says why
        process.stdin.write(data)
        process.stdin.flush()


def _hang_up(process: Process) -> None:
    assert process.stdin is not None
    with contextlib.suppress(OSError):
        process.stdin.close()


@contextlib.contextmanager
def _signals_as_ends(ends: _Ends) -> Iterator[None]:
    """Put signals that would end this program into `ends` within the block, so that the tasks are ended.

    Signals that are ignored, as under `nohup` and in background jobs, remain ignored.
    """
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.getsignal(number) for number in numbers}
    heard = {number: each for number, each in before.items() if each != signal.SIG_IGN}
    for number in heard:
        signal.signal(number, lambda number, _: ends.put((None, number, "")))
    try:
        yield
    finally:
        for number, handler in heard.items():
            signal.signal(number, handler)


def _wait_for(
    crew: Crew, request: Request, tasks: _Tasks, ends: _Ends, say: Callable[[str], None]
) -> tuple[int, str]:
    """Wait until all tasks that end by themselves have ended, or one has failed that is not started anew.

    The result is the exit status and its reason.
    """

    def follow(task: Task, each: _Started) -> None:
        def wait() -> None:
            ends.put((task, *each.wait(crew)))

        threading.Thread(target=wait, daemon=True).start()

    for task, each in tasks.started.items():
        follow(task, each)
    running = {task for task in tasks.started if not request.serves(task)}
    restarts = request.restarts
    while running:
        ended, status, lost = ends.get()
        if ended is None:
            return EXIT_SIGNAL + status, signal.Signals(status).name
        if lost:
            return status, f"{ended.name}: {lost}"
        if status and restarts:
            restarts -= 1
            say(f"{ended.name} {ending(status)} and is started anew, {restarts} more times at most")
            follow(ended, tasks.start(ended))
        elif status:
            return EXIT_SIGNAL - status if status < 0 else status, f"{ended.name} {ending(status)}"
        else:
            running.discard(ended)
    return 0, ""


def _end(crew: Crew, request: Request, started: Mapping[Task, _Started], ends: _Ends) -> None:
    """End all tasks: SIGTERM, and SIGKILL after the grace, or at once if a signal comes."""
    running = {task for task, each in started.items() if each.process.returncode is None}
    for task in running:
        if request.hosts:
            _send(started[task].process, remote.END)
        else:
            terminate(started[task].process)
    deadline = time.monotonic() + request.grace
    while running:
        try:
            ended, _, _ = ends.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            break
        if ended is None:
            break
        running.discard(ended)
    if request.hosts:
        crew.stop(_hang_up)  # the agents kill the tasks, whose last output still comes
    else:
        crew.stop(grace=0)


def run(request: Request, say: Callable[[str], None]) -> int:
    """Run the tasks to their end, with "[worker 0] " and so on before their output. Returns the exit status.

    It is 0 if no task failed, otherwise that of the first task that failed; or 128 plus the signal that
    ended a task or this program. No process stays behind. `say` gets messages for the user. Call it in the
    main thread. Raises OSError if there is no port or no process for a task.
    """
    ends: _Ends = queue.SimpleQueue()
    with _signals_as_ends(ends):
        with _addresses(request) as addresses, Crew() as crew:
            tasks = _Tasks(crew, request, addresses)
            for task in request.tasks:
                tasks.start(task)
            status, why = _wait_for(crew, request, tasks, ends, say)
            if why:
                say(f"{why}; all tasks are ended, by SIGKILL after {request.grace:g} s or Ctrl-C")
            _end(crew, request, tasks.started, ends)
        for each in tasks.started.values():
            each.join()
    return status


def _addresses(request: Request) -> contextlib.AbstractContextManager[list[str]]:
    if not request.hosts:
        return reserved_addresses(len(request.tasks))
    hosts = [host.address for host in request.hosts]
    return contextlib.nullcontext(addresses_of(hosts, request.port))


def python_of(command: Sequence[str]) -> tuple[str | None, Sequence[str]]:
    """Return the Python that a command line begins with, and what follows it; None if it begins with none."""
    word = command[0]
    python = shutil.which(word) if _PYTHON.fullmatch(Path(word).name) else None
    return (None, command) if python is None else (python, command[1:])


def command_of(program: Sequence[str]) -> list[str]:
    """Return the command line of any program, or of a script or module of Python."""
    if program[0].startswith("-") or (
        shutil.which(program[0]) is None and program[0].endswith(".py")
    ):
        return [sys.executable, *program]
    return [*program]


def _options(program: Sequence[str]) -> int:
    """Return how many words before the script, or -m or -c, are options of Python."""
    count = 0
    while count < len(program) and program[count].startswith("-") and program[count] not in _RUN:
        count += 2 if program[count] in ("-W", "-X") else 1
    return count


def check(program: Sequence[str]) -> str:
    """Return why a program cannot be run; "" if it can, or if Python will tell."""
    words = program[_options(program) :]
    if not words or list(words) == ["-m"]:
        return "there is no program: name a script, or -m and a module"
    if words[0] in _RUN:
        return ""
    script = Path(words[0])
    if not script.exists():
        return f"{script} does not exist"
    if not (script.is_file() or (script / "__main__.py").is_file()) or not os.access(
        script, os.R_OK
    ):
        return f"{script} is not a readable file"
    return ""


def check_ports(request: Request) -> str:
    """Return why the tasks of one host cannot have the ports of the setting; "" if they can."""
    fixed = os.environ.get("RDMATENSOR_BIND_PORT", "")
    hosts = [host.name for host in request.hosts] or ["this host"] * len(request.tasks)
    name, most = Counter(hosts).most_common(1)[0]
    if most == 1 or not fixed.strip("0") or "-" in fixed or request.protocol == "grpc":
        return ""
    return (
        f"RDMATENSOR_BIND_PORT is {fixed}, but {name} has {most} tasks, and each of them needs a port: "
        "give a range, such as 7000-7031"
    )


def check_jax(request: Request) -> str:
    """Return why the tasks cannot run JAX over rdmatensor; "" if they can, or need not."""
    if not request.jax:
        return ""
    if request.ps:
        return "--jax needs tasks of one kind: leave --ps out"
    if "-c" in request.program[_options(request.program) :][:1]:
        return "--jax needs a script or a module, not -c"
    if importlib.util.find_spec("jax") is None:
        return "--jax needs jax: pip install 'rdmatensor[jax]'"
    return ""


def check_metrics(request: Request) -> str:
    """Return why the tasks cannot serve their metrics; "" if they can, or need not."""
    if not request.metrics_port:
        return ""
    if request.metrics_port + len(request.tasks) - 1 > 65535:
        return f"--metrics-port {request.metrics_port}: there are too few ports above it"
    if "-c" in request.program[_options(request.program) :][:1]:
        return "--metrics-port needs a script or a module, not -c"
    if importlib.util.find_spec("prometheus_client") is None:
        return "--metrics-port needs prometheus-client: pip install 'rdmatensor[metrics]'"
    return ""

# SPDX-License-Identifier: Apache-2.0
"""Runs the tests of a file, or a part of them, over one protocol.

A process that crashes or hangs is ended, and another one does the tests that are left. Of one that hangs, the
stacks are in the log: those of Python, and native ones if they were asked for, which takes gdb minutes.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import threading
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypedDict

SITE = Path(__file__).resolve().parent / "site"
POLL = 0.1  # seconds
STACKS = 20.0  # seconds in which all processes have to write their stacks
SETTLED = 0.5  # seconds without growth after which they are taken as written
GDB = 300.0  # seconds for a process: TensorFlow's libraries are large, and its threads many
LONGEST_NAME = 120  # characters of a folder's name
EXIT = "(exit)"

Status = Literal["pass", "skip", "fail", "timeout", "crash"]
# Set when the run is interrupted: nothing more is started, and what runs is ended.
stopping = threading.Event()
BAD: frozenset[Status] = frozenset({"fail", "timeout", "crash"})


class Result(TypedDict):
    """How a test went, once."""

    status: Status
    seconds: float
    text: str
    """The error, or the reason for which it was skipped."""
    shard: int


Results = dict[str, Result]


@dataclass(frozen=True)
class Side:
    """What is compared: a protocol and the settings of the plugin."""

    name: str
    protocol: str
    settings: Mapping[str, str] = field(default_factory=dict)
    path: str = ""
    """The path that tensors must have taken; "" stands for any but rpc."""


@dataclass(frozen=True)
class Limits:
    """In seconds."""

    test: float
    shard: float
    native: bool = False
    """Native stacks of what hangs, too; getting them does not count."""


@dataclass(frozen=True)
class Work:
    """A part of a test file."""

    program: Path
    out: Path
    """The folder of the whole run."""
    shard: int = 0
    shards: int = 1
    v1: bool = False
    names: Sequence[str] = ()
    """Only these tests; [] means all of the shard."""
    label: str = ""
    """Distinguishes runs of one shard."""

    def folder(self, side: Side) -> Path:
        """The folder of its log and all that belongs to it."""
        name = f"{self.program.name}.{side.name}.{self.shard}{self.label}".replace("/", "-")
        if len(name) > LONGEST_NAME:
            name = f"{name[:LONGEST_NAME]}-{zlib.crc32(name.encode()):08x}"
        return self.out / "work" / name


def run(work: Work, side: Side, limits: Limits) -> tuple[Results, float]:
    """The results, and the seconds it took. Tests that were not begun in time are missing."""
    folder = work.folder(side)
    shutil.rmtree(folder, ignore_errors=True)  # of an earlier run
    for name in ("tmp", "stats", "stacks"):
        (folder / name).mkdir(parents=True)
    environment = environment_of(work, side, folder)
    events = folder / "events"
    events.touch()
    began = time.monotonic()
    more = True
    while more and not stopping.is_set() and (left := began + limits.shard - time.monotonic()) > 0:
        before = len(results_in(events, work.shard)[0])
        ended = run_process(work, environment, folder, limits, left)
        done, running = results_in(events, work.shard)
        more = close(events, ended, running, done) and len(done) >= before
    return results_in(events, work.shard)[0], time.monotonic() - began


def environment_of(work: Work, side: Side, folder: Path) -> dict[str, str]:
    """The variables of the test's processes. CONFORMANCE_* are read by conformance_hook."""
    environment = {
        **os.environ,
        **{f"RDMATENSOR_{name}": value for name, value in side.settings.items()},
        "PYTHONPATH": str(SITE),
        "PYTHONUNBUFFERED": "1",
        "CONFORMANCE_PARENT": str(os.getpid()),
        "CONFORMANCE_PROTOCOL": side.protocol,
        "CONFORMANCE_V1": str(int(work.v1)),
        "CONFORMANCE_EVENTS": str(folder / "events"),
        "CONFORMANCE_STATS": str(folder / "stats"),
        "CONFORMANCE_STACKS": str(folder / "stacks"),
        "CONFORMANCE_OVERLAY": str(work.out / "overlay"),
        "TEST_TMPDIR": str(folder / "tmp"),
        "TF_USE_LEGACY_KERAS": "1",
    }
    if work.shards > 1 and not work.names:
        environment |= {
            "TEST_TOTAL_SHARDS": str(work.shards),
            "TEST_SHARD_INDEX": str(work.shard),
        }
    return environment


@dataclass(frozen=True)
class Ended:
    """How a process ended."""

    status: Literal["exit", "timeout", "crash"]
    code: int
    seconds: float
    """Since the last event."""


def run_process(
    work: Work, environment: Mapping[str, str], folder: Path, limits: Limits, left: float
) -> Ended:
    """Runs one process to its end, or until it hangs: too long without an event, or `left` seconds in all."""
    with (folder / "log").open("ab") as log:
        process = subprocess.Popen(
            [work.program, *work.names],
            env=environment,
            cwd=folder / "tmp",
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        began = changed = time.monotonic()
        hangs, size, events = False, -1, folder / "events"
        try:
            while process.poll() is None and not hangs and not stopping.is_set():
                time.sleep(POLL)
                now = time.monotonic()
                if size != (size := events.stat().st_size):
                    changed = now
                hangs = now - changed > limits.test or now - began > left
            seconds = time.monotonic() - changed
            if hangs:
                log.write(stacks_of(process.pid, folder / "stacks", limits.native).encode())
        finally:
            kill_group(process.pid)
            process.wait()
    if hangs:
        return Ended("timeout", process.returncode, seconds)
    exited = process.returncode >= 0 and results_in(events, 0)[1] == EXIT
    return Ended("exit" if exited else "crash", process.returncode, seconds)


def results_in(events: Path, shard: int) -> tuple[Results, str | None]:
    """The results so far; and the test under way, EXIT after the last one, None between tests."""
    done: Results = {}
    running: str | None = None
    for line in events.read_text().splitlines(keepends=True):
        if not line.endswith("\n"):
            break  # it is being written
        event = json.loads(line)
        running = event["test"] if event["event"] == "start" else None
        if event["event"] == "stop":
            done[event["test"]] = {
                "status": event["status"],
                "seconds": event["seconds"],
                "text": event["text"],
                "shard": shard,
            }
    return done, running


def close(events: Path, ended: Ended, running: str | None, done: Results) -> bool:
    """Writes down what the process did not: how the test under way ended. True if tests may be left."""
    status: str = ended.status
    text = f"signal {-ended.code}" if ended.code < 0 else f"exit status {ended.code}"
    if ended.status == "exit":
        # Python 3.12 ends with 5 where no test is left to run.
        explained = any(result["status"] in BAD for result in done.values())
        status = "pass" if ended.code in (0, 5) or (ended.code == 1 and explained) else "fail"
    elif ended.status == "timeout":
        text = f"no progress for {ended.seconds:.0f} seconds; the log has the stacks"
    name = running or "(between tests)"
    event = {
        "event": "stop",
        "test": name,
        "status": status,
        "seconds": ended.seconds,
        "text": "" if status == "pass" else text,
    }
    with events.open("a") as file:
        file.write(json.dumps(event) + "\n")
    return running not in (EXIT, None)


def stacks_of(group: int, folder: Path, with_native: bool) -> str:
    """Where all threads of all processes of a process group are."""
    processes = list(members(group))
    for pid in processes:
        # conformance_hook opens the file when it can answer; another program would be ended by the signal.
        if (folder / f"{pid}.txt").exists():
            send(pid, signal.SIGUSR2)
    answers = {pid: path for pid in processes if (path := folder / f"{pid}.txt").exists()}
    wait_for_stacks(list(answers.values()))
    parts = [f"\n=== Python stacks of {pid}\n{path.read_text()}" for pid, path in answers.items()]
    if with_native:
        parts += [f"\n=== native stacks of {pid}\n{native(pid)}" for pid in processes]
    return "".join(parts)


def wait_for_stacks(answers: Sequence[Path]) -> None:
    """Until something is in each file and all have stopped growing. Nothing marks the end of the stacks."""
    deadline, before = time.monotonic() + STACKS, [0]
    while time.monotonic() < deadline:
        sizes = [path.stat().st_size for path in answers]
        if all(sizes) and sizes == before:
            return
        before = sizes
        time.sleep(SETTLED)


def native(pid: int) -> str:
    """The native stacks of a process, or why there are none."""
    gdb = shutil.which("gdb")
    if gdb is None:
        return "none: there is no gdb\n"
    command = [gdb, "-p", str(pid), "-batch", "-nx", "-ex", "set pagination off"]
    try:
        done = subprocess.run(
            [*command, "-ex", "thread apply all bt 30"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=GDB,
        )
    except subprocess.TimeoutExpired:
        return f"none: gdb took longer than {GDB:.0f} seconds\n"
    _, first, threads = done.stdout.partition("\nThread ")  # behind what gdb says of itself
    return first.lstrip() + threads if first else done.stderr


def members(group: int) -> Iterator[int]:
    """The processes of a process group; its leader comes first."""
    pids = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdecimal()]
    for pid in sorted(pids, key=lambda pid: (pid != group, pid)):
        try:
            # The fields behind the name, which is in brackets and may contain any character.
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[2]) == group and fields[0] != "Z":
            yield pid


def send(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def kill_group(group: int) -> None:
    """Also what the tests left behind."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)

# SPDX-License-Identifier: Apache-2.0
"""Runs the benchmark between processes: on this machine, or on hosts that ssh or Slurm reach.

Nothing listens but the devices themselves. Orders, with a secret made for the run, go through the standard
input of the started processes, never through an argument or an environment that others can see.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from .probe import FULL, QUICK
from .record import BadRecord, Run

PEER, PROBE = "rdmatensor.bench.peer", "rdmatensor.bench.probe"
LAUNCHERS = ("ssh", "slurm")
START_S = 120.0
_GRACE_S = 5.0
_TAIL = 2000


class BenchFailed(Exception):
    """A process did not do its part; the text tells which, and what it printed last."""


@dataclass(frozen=True)
class Host:
    """A machine: `name` as the launcher knows it, `address` as the others reach it ("" : this machine)."""

    name: str
    address: str = ""


@dataclass(frozen=True)
class Launcher:
    """How a Python is started on a host: "" here, "ssh" or "slurm". `python` is its path there."""

    kind: str = ""
    python: str = sys.executable
    options: Sequence[str] = ()

    def command(self, host: Host, module: str) -> list[str]:
        """That runs `module` on the host, with standard input and output passed on."""
        run = [self.python, "-m", module]
        if self.kind == "ssh":
            return ["ssh", "-o", "BatchMode=yes", *self.options, host.name, " ".join(run)]
        if self.kind == "slurm":
            place = ["--nodes=1", "--ntasks=1", "--overlap", f"--nodelist={host.name}"]
            return ["srun", *place, *self.options, *run]
        return run


def parse_hosts(text: str) -> list[Host]:
    """One host a line, `NAME [ADDRESS]`; "#" begins a comment. ValueError names the line that is wrong.

    NAME is what ssh or Slurm knows the host by (may be user@host); ADDRESS, by default NAME without the user,
    is the one that the other hosts reach it at.
    """
    hosts = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        if len(words) > 2 or words[0].startswith("-"):
            raise ValueError(f"line {number}: {line.strip()!r} is not NAME [ADDRESS]")
        hosts.append(Host(words[0], words[-1].rpartition("@")[2]))
    if len(hosts) < 2:
        raise ValueError(f"{len(hosts)} hosts: at least two are needed, one may be named twice")
    return hosts


@dataclass
class _Started:
    name: str
    process: subprocess.Popen[str]
    errors: list[str] = field(default_factory=list)
    reader: threading.Thread = field(init=False)

    def __post_init__(self) -> None:
        self.reader = threading.Thread(target=self._read_errors, daemon=True)
        self.reader.start()

    def _read_errors(self) -> None:
        self.errors.extend(_pipe(self.process.stderr))

    def answer(self, patience: float) -> str:
        """The next line of its output. BenchFailed if it ends, or says nothing for `patience` seconds."""
        late = threading.Timer(patience, _end, [self.process])
        late.start()
        try:
            line = _pipe(self.process.stdout).readline()
        finally:
            late.cancel()
        if line:
            return line
        _await_end(self.process)
        status = self.process.wait()
        # The reason of its end may still be in the pipe. A child of its own may keep the pipe open.
        self.reader.join(_GRACE_S)
        said = "".join(self.errors)[-_TAIL:].strip() or "it printed nothing"
        raise BenchFailed(f"{self.name} ended with status {status} or did not answer: {said}")


def _end(process: subprocess.Popen[str]) -> None:
    """First in a way that lets it clean up: a killed srun would leave its job in the queue."""
    process.terminate()
    try:
        process.wait(_GRACE_S)
    except subprocess.TimeoutExpired:
        process.kill()


def _await_end(process: subprocess.Popen[str]) -> None:
    """Of a process that should end by itself now."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_GRACE_S)
    _end(process)


def _pipe(stream: IO[str] | None) -> IO[str]:
    assert stream is not None
    return stream


@contextlib.contextmanager
def _started(name: str, command: list[str], order: Mapping[str, Any]) -> Iterator[_Started]:
    """A process with its order; it ends with the block, because its standard input does."""
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            # Not where the sources may be: there Python would import those, which are not built.
            cwd="/",
        )
    except OSError as error:
        raise BenchFailed(f"{command[0]} cannot be started: {error}") from None
    started = _Started(name, process)
    with process:
        try:
            with contextlib.suppress(OSError):  # it ended at once: `answer` tells why
                _pipe(process.stdin).write(json.dumps(order) + "\n")
                _pipe(process.stdin).flush()
            yield started
        finally:
            with contextlib.suppress(OSError):
                _pipe(process.stdin).close()
            _await_end(process)
            started.reader.join(1)


@contextlib.contextmanager
def peer_here(nbytes: int, settings: Mapping[str, str] = {}) -> Iterator[str]:
    """The address of a peer here with a region of `nbytes`, until the end of the block. BenchFailed."""
    order = {"bytes": nbytes, "secret": None, "settings": dict(settings), "bind": None}
    with _started("the peer", Launcher().command(Host("here"), PEER), order) as peer:
        yield json.loads(peer.answer(START_S))["address"]


def measure(
    hosts: Sequence[Host],
    launcher: Launcher,
    quick: bool = False,
    settings: Mapping[str, str] = {},
    patience: float = 1800.0,
) -> Run:
    """From the first host to each of the others, in turn. `settings` are rdmatensor's, of both ends.

    BenchFailed if a process cannot be started, fails, or does not answer for `patience` seconds.
    """
    effort = QUICK if quick else FULL
    order = {
        "bytes": max(effort.sizes),
        "secret": secrets.token_hex(32) if launcher.kind else None,
        "settings": dict(settings),
    }
    first, *others = hosts
    with contextlib.ExitStack() as stack:
        peers = {}
        for number, host in enumerate(others, 1):
            peer_order = {**order, "bind": host.address or None}
            name = host.name if host.name not in peers else f"{host.name} ({number})"
            command = launcher.command(host, PEER)
            peer = stack.enter_context(_started(f"the peer on {host.name}", command, peer_order))
            peers[name] = json.loads(peer.answer(START_S))["address"]
        probe_order = {**order, "bind": first.address or None, "peers": peers, "quick": quick}
        command = launcher.command(first, PROBE)
        with _started(f"the probe on {first.name}", command, probe_order) as probe:
            try:
                return Run.from_json(probe.answer(patience), f"the answer of {first.name}")
            except BadRecord as error:
                raise BenchFailed(str(error)) from None


def read_hosts(path: Path) -> list[Host]:
    """As parse_hosts; ValueError names the file, too."""
    try:
        return parse_hosts(path.read_text())
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None

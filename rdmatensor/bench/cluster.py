# SPDX-License-Identifier: Apache-2.0
"""Runs the benchmark between processes on this machine, or on hosts that ssh or Slurm can reach.

Only the devices listen. Orders and the secret of the run go through the standard input of the processes,
because others can see arguments and environments.
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
START_S = 120.0
_GRACE_S = 5.0
_TAIL = 2000


class BenchFailed(Exception):
    """A process failed. The text names it, with the end of its output."""


@dataclass(frozen=True)
class Host:
    """A machine: its `name` for the launcher, and its `address` for the other hosts ("": this machine)."""

    name: str
    address: str = ""


@dataclass(frozen=True)
class Launcher:
    """How to start `python` on a host: directly (""), with "ssh", or with "slurm"."""

    kind: str = ""
    python: str = sys.executable
    options: Sequence[str] = ()

    def command(self, host: Host, module: str) -> list[str]:
        """The command that runs `module` on the host, and passes on standard input and output."""
        run = [self.python, "-m", module]
        if self.kind == "ssh":
            return ["ssh", "-o", "BatchMode=yes", *self.options, host.name, " ".join(run)]
        if self.kind == "slurm":
            place = ["--nodes=1", "--ntasks=1", "--overlap", f"--nodelist={host.name}"]
            return ["srun", *place, *self.options, *run]
        return run


def parse_hosts(text: str) -> list[Host]:
    """Read one host per line: `NAME [ADDRESS]`. "#" begins a comment. ValueError names a wrong line.

    NAME is for ssh or Slurm and may be user@host. ADDRESS is for the other hosts; the default is NAME without
    the user.
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
        raise ValueError(f"{len(hosts)} hosts: at least two are needed, which may be the same")
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
        """The next line of its output. BenchFailed if it ends, or prints nothing for `patience` seconds."""
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
        # The reason may still be in the pipe, which a child of the process may keep open.
        self.reader.join(_GRACE_S)
        output = "".join(self.errors)[-_TAIL:].strip() or "it printed nothing"
        raise BenchFailed(f"{self.name} ended with status {status} or did not answer: {output}")


def _end(process: subprocess.Popen[str]) -> None:
    """Terminate before killing: a killed srun would leave its job in the queue."""
    process.terminate()
    try:
        process.wait(_GRACE_S)
    except subprocess.TimeoutExpired:
        process.kill()


def _await_end(process: subprocess.Popen[str]) -> None:
    """Wait for a process that should end by itself now."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_GRACE_S)
    _end(process)


def _pipe(stream: IO[str] | None) -> IO[str]:
    assert stream is not None
    return stream


@contextlib.contextmanager
def _started(name: str, command: list[str], order: Mapping[str, Any]) -> Iterator[_Started]:
    """Start a process and send its order. It ends with the block, which closes its standard input."""
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            # In the source folder, Python would import the sources, which are not built.
            cwd="/",
        )
    except OSError as error:
        raise BenchFailed(f"{command[0]} cannot be started: {error}") from None
    started = _Started(name, process)
    with process:
        try:
            with contextlib.suppress(OSError):  # if it ended at once, `answer` reports why
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
    """Run a local peer with a region of `nbytes` bytes, and give its address. BenchFailed if it fails."""
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
    """Measure from the first host to each of the others. `settings` apply to both ends.

    BenchFailed if a process cannot be started, fails, or does not answer within `patience` seconds.
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
    """Read hosts from a file, as in parse_hosts. ValueError names the file, too."""
    try:
        return parse_hosts(path.read_text())
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None

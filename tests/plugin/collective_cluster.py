# SPDX-License-Identifier: Apache-2.0
"""Workers of MultiWorkerMirroredStrategy in processes of their own. Every wait has a deadline."""

from __future__ import annotations

import json
import os
import select
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from support import warm
from support.clusters import START_S, Task
from support.ports import free_ports

# Each waits for all others, which start one after the other on few cores.
ALL_START_S = 2 * START_S


class Member(Task):
    """One process that runs support.collective_worker."""

    def __init__(
        self,
        addresses: list[str],
        index: int,
        protocol: str,
        log: Path,
        environment: dict[str, str],
    ) -> None:
        self.log = log
        program = [warm.python(), "-m", "support.collective_worker"]
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                [*program, json.dumps(addresses), str(index), protocol],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "2"} | environment,
            )
        self._partial = b""

    def wait_until_ready(self) -> None:
        """Until the strategy is there, which takes all members."""
        self._pid = self._read(ALL_START_S)["pid"]

    def begin(self, command: str, **arguments: Any) -> None:
        """Give a command, see `answer`."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([command, arguments]).encode() + b"\n")
        self._process.stdin.flush()

    def answer(self, timeout_s: float) -> Any:
        """Of the earliest command that was not answered yet."""
        return self._read(timeout_s)

    def fileno(self) -> int:
        """Where its answers come."""
        assert self._process.stdout is not None
        return self._process.stdout.fileno()


class Members:
    """A cluster of `size` workers with one protocol, some of them with an environment."""

    def __init__(
        self,
        size: int,
        protocol: str,
        folder: Path,
        environments: dict[int, dict[str, str]] | None = None,
    ) -> None:
        addresses = [f"127.0.0.1:{port}" for port in free_ports(size)]
        more = environments or {}
        self.all = [
            Member(addresses, i, protocol, folder / f"worker{i}.log", more.get(i, {}))
            for i in range(size)
        ]
        for member in self.all:
            member.wait_until_ready()

    def ask(
        self, command: str, of: list[int] | None = None, timeout_s: float = 60, **arguments: Any
    ) -> list[Any]:
        """The answers of the members `of` (None: all) to one command given to all of them."""
        asked = [self.all[i] for i in of] if of is not None else self.all
        for member in asked:
            member.begin(command, **arguments)
        with ThreadPoolExecutor(len(asked)) as threads:
            return list(threads.map(lambda member: member.answer(timeout_s), asked))

    def first_answer(self, timeout_s: float) -> Any:
        """Of whichever member has one first."""
        ready, _, _ = select.select(self.all, [], [], timeout_s)
        assert ready, f"no member answered in {timeout_s:.0f} s"
        return ready[0].answer(timeout_s)

    def warnings(self) -> list[str]:
        """What rdmatensor warned of, anywhere."""
        lines = [line for member in self.all for line in member.log.read_text().splitlines()]
        return [line for line in lines if "rdmatensor: WARN" in line]

    def close(self) -> None:
        """Kill all."""
        for member in self.all:
            member.kill()

# SPDX-License-Identifier: Apache-2.0
"""Processes that train together: each runs one case of cases.py and answers with what it returns."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from support import warm
from support.ports import free_ports

PATIENCE_S = 500.0
STACKS_S = 10.0


# Settings that TensorFlow reads while it is imported.
AT_IMPORT = {"TF_ENABLE_ONEDNN_OPTS"}


class Ranks:
    """The processes of a case. Use it as a context: what still runs at the end is killed."""

    def __init__(
        self,
        case: str,
        size: int,
        folder: Path,
        environment: Mapping[str, str] | None = None,
        tf_config: bool = False,
        **arguments: Any,
    ) -> None:
        self._ports = free_ports(size if tf_config else 1)
        self._tf_config = tf_config
        imports = {name: value for name, value in (environment or {}).items() if name in AT_IMPORT}
        self._command = [warm.python(**imports), "-m", "train.cases", case, json.dumps(arguments)]
        self._environment = environment or {}
        self.logs = [folder / f"{case}_{size}_{rank}.log" for rank in range(size)]
        self.processes = [self._started(rank) for rank in range(size)]

    def _started(self, rank: int) -> subprocess.Popen[bytes]:
        settings = {**self._place(rank), "TF_CPP_MIN_LOG_LEVEL": "2", **self._environment}
        with self.logs[rank].open("ab") as errors:
            return subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=os.environ | settings,
            )

    def _place(self, rank: int) -> dict[str, str]:
        """The variables that tell a process its place: those of torchrun, or TF_CONFIG, which also tells
        where all the others are."""
        if self._tf_config:
            workers = [f"127.0.0.1:{port}" for port in self._ports]
            task = {"type": "worker", "index": rank}
            return {"TF_CONFIG": json.dumps({"cluster": {"worker": workers}, "task": task})}
        return {
            "TF_CONFIG": "",
            "RANK": str(rank),
            "WORLD_SIZE": str(len(self.logs)),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(self._ports[0]),
        }

    def start_again(self, rank: int) -> None:
        """Starts a process in the place of one that has ended."""
        self.processes[rank] = self._started(rank)

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            process.kill()
            process.wait()

    def kill(self, rank: int) -> None:
        self.processes[rank].send_signal(signal.SIGKILL)
        self.processes[rank].wait(PATIENCE_S)

    def wait_for(self, rank: int, word: str) -> None:
        """Until the process has said the word on a line of its own."""
        stream = self.processes[rank].stdout
        assert stream is not None
        for line in stream:
            if line.decode().strip() == word:
                return
        raise AssertionError(f"rank {rank} never said {word}:\n{self.log(rank)}")

    def log(self, rank: int) -> str:
        return self.logs[rank].read_text(errors="replace")[-4000:]

    def answer(self, rank: int) -> Any:
        """What the case returned, or {"error": its class, "text": its words}."""
        try:
            out, _ = self.processes[rank].communicate(timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"rank {rank} gave no answer: {self._what_they_do()}") from None
        lines = out.decode().splitlines()
        assert lines, f"rank {rank} ended with {self.processes[rank].returncode}:\n{self.log(rank)}"
        return json.loads(lines[-1])

    def _what_they_do(self) -> str:
        """The threads of processes that have not ended, which each tells when it is asked."""
        before = [path.stat().st_size for path in self.logs]
        for process in self.processes:
            process.send_signal(signal.SIGUSR1)
        told = time.monotonic() + STACKS_S
        while time.monotonic() < told and any(
            process.poll() is None and path.stat().st_size == size
            for process, path, size in zip(self.processes, self.logs, before, strict=True)
        ):
            time.sleep(0.1)
        return "\n".join(f"rank {rank}:\n{self.log(rank)}" for rank in range(len(self.logs)))

    def answers(self) -> list[Any]:
        return [self.answer(rank) for rank in range(len(self.processes))]


def run(
    case: str,
    size: int,
    folder: Path,
    environment: Mapping[str, str] | None = None,
    **arguments: Any,
) -> list[Any]:
    """The answers of all ranks; none may be an error."""
    with Ranks(case, size, folder, environment, **arguments) as ranks:
        answers = ranks.answers()
        for rank, answer in enumerate(answers):
            assert not (isinstance(answer, dict) and "error" in answer), (
                rank,
                answer,
                ranks.log(rank),
            )
    return answers

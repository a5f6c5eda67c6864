# SPDX-License-Identifier: Apache-2.0
"""Workers of MultiWorkerMirroredStrategy in processes of their own. Every wait has a deadline."""

from __future__ import annotations

import itertools
import json
import os
import select
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from support import warm
from support.clusters import START_S, Task
from support.collective_values import Array, expected, numpy_dtype, value
from support.ports import free_ports

# Each waits for all others, which start one after the other on few cores.
ALL_START_S = 2 * START_S
# Sums of few terms, in another order than numpy's and rounded to the type after each.
TOLERANCE = {"float32": 1e-5, "float64": 1e-12, "float16": 2e-2, "bfloat16": 1e-1}

groups = itertools.count(1000)


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


def check(
    cluster: Members, operations: list[dict[str, Any]], size: int, times: int = 1
) -> list[Any]:
    """Run operations among the first `size` members, and compare all that comes out."""
    of = list(range(size))
    answers = cluster.ask(
        "run", of=of, operations=operations, members=of, group=next(groups), times=times
    )
    for rank, answer in enumerate(answers):
        assert "results" in answer, answer
        for operation, result in zip(operations, answer["results"], strict=True):
            compare(operation, rank, size, result)
    return answers


def compare(operation: dict[str, Any], rank: int, size: int, result: str) -> None:
    """One result of one member with what must come out."""
    dtype, seed = operation["dtype"], operation.get("seed", 0)
    inputs = [value(member, dtype, operation["shape"], seed) for member in range(size)]
    options = operation.get("options", {})
    kind = "all_reduce" if operation["kind"] == "reduce_v1" else operation["kind"]
    wanted = expected(kind, inputs, rank, options.get("merge_op", "Add"))
    if options.get("final_op") == "Div":
        wanted = wanted / size
    got: Array = np.frombuffer(bytes.fromhex(result), numpy_dtype(dtype)).reshape(wanted.shape)
    if size == 2 and options.get("final_op") != "Div":
        # a + b is b + a: every order gives the same bits.
        np.testing.assert_array_equal(got, wanted.astype(numpy_dtype(dtype)), str(operation))
    elif dtype in TOLERANCE:
        difference = np.abs(got.astype(np.float64) - wanted)
        assert difference.max(initial=0) <= TOLERANCE[dtype], operation
    else:
        np.testing.assert_array_equal(got, wanted, str(operation))


def went_by_rdmatensor(cluster: Members, size: int, operations: int) -> None:
    """All members of the group ran that many on it, and none otherwise."""
    for stats in cluster.ask("stats", of=list(range(size))):
        collectives = stats["collectives"]
        done = sum(each["operations"] for each in collectives["operations"].values())
        assert done == operations, collectives
        assert collectives["by_tensorflow"] == {} and collectives["failed"] == 0, collectives

# SPDX-License-Identifier: Apache-2.0
"""What communication adds to a training step, beside torch's DDP and JAX; what small operations and a group
of one cost; and how much of a slow link hides behind the backward pass.

Each framework trains one matrix of 2048 x 2048, alone and in several processes. What its communication costs
is the difference to its own step alone, so its arithmetic does not count. All ways take turns.
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import click

from options import benchmark, has_module, json_option, quick_option, rival_python_option
from rdmatensor._tools.processes import free_addresses
from rdmatensor.bench import record, report
from rdmatensor.bench.turns import Samples, rotated
from training_member import LAYERS, WIDTH

MEMBER = Path(__file__).with_name("training_member.py")
OURS, KERAS, TORCH, JAX = "rdmatensor.train", "Keras 3 alone", "torch DDP, gloo", "JAX, gloo"
FLOOR = "nothing remote"
RIVALS = {TORCH: "torch", JAX: "jax"}
BLOCK = 5
# The emulated link passes the gradients' bytes in this share of a step's computing time. Sums and copies
# add to that, so the all-reduces take about half as long as the backward pass.
WIRE_SHARE = 1 / 4


@dataclass
class Way:
    """One program in `size` processes, and the times of its steps: those of the slowest process."""

    program: str
    size: int
    processes: list[subprocess.Popen[bytes]]
    samples: Samples = field(default_factory=Samples)

    def measure(self, steps: int) -> None:
        for process in self.processes:
            assert process.stdin is not None
            process.stdin.write(f"{steps}\n".encode())
            process.stdin.flush()
        answers = [json.loads(_answer(process, b"times")) for process in self.processes]
        self.samples.blocks.append([max(times) for times in zip(*answers, strict=True)])

    @property
    def seconds(self) -> float:
        return median(self.samples.all)


def _answer(process: subprocess.Popen[bytes], word: bytes) -> bytes:
    """What follows the word. Libraries print lines of their own."""
    assert process.stdout is not None
    while line := process.stdout.readline():
        if line.startswith(word):
            return line.removeprefix(word)
    raise click.ClickException(f"a process ended with status {process.wait()}: see its log")


class Ways:
    """Starts ways, which live as long as the stack."""

    def __init__(self, stack: ExitStack, logs: Path, rival_python: str) -> None:
        self._stack, self._logs, self.rival_python = stack, logs, rival_python

    def start(self, program: str, size: int, more: Mapping[str, str] | None = None) -> Way:
        port = free_addresses(1)[0].rpartition(":")[2]
        python = self.rival_python if program in RIVALS.values() else sys.executable
        processes = []
        for rank in range(size):
            log = self._logs / f"{program}_{size}_{rank}.log"
            process = subprocess.Popen(
                [python, str(MEMBER), program, str(rank), str(size), port],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._stack.enter_context(log.open("ab")),
                env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "2"} | dict(more or {}),
            )
            self._stack.callback(process.wait)
            self._stack.callback(process.kill)
            processes.append(process)
        for process in processes:
            _answer(process, b"ready")
        return Way(program, size, processes)


def _in_turns(ways: Mapping[str, Way], turns: int) -> None:
    for order in rotated(list(ways), turns):
        for name in order:
            ways[name].measure(BLOCK)


def _steps(make: Ways, run: record.Run, workers: int, turns: int) -> None:
    alone, together = {KERAS: make.start("plain", 1)}, {}
    for name, program in {OURS: "keras", **RIVALS}.items():
        if program in RIVALS.values() and not has_module(make.rival_python, program):
            run.missing.append(
                record.Missing(name, "not installed", f"pip install {program}; --rival-python")
            )
            continue
        alone[name], together[name] = make.start(program, 1), make.start(program, workers)
    _in_turns(
        {f"{name} {way.size}": way for ways in (alone, together) for name, way in ways.items()},
        turns,
    )
    suite = f"training step, 17 MB of gradients, {workers} processes"
    for case, ways in (("a process alone", alone), ("together", together)):
        run.results += [_result(suite, case, name, way.samples) for name, way in ways.items()]
    for name, way in together.items():
        pairs = zip(way.samples.turns, alone[name].samples.turns, strict=True)
        rival = TORCH if name == OURS and TORCH in together else ""
        run.results.append(
            record.Result(
                suite,
                "what communication adds",
                name,
                record.SECONDS,
                [both - one for both, one in pairs],
                rival=rival,
                target=2.0 if rival else None,
            )
        )


def _result(suite: str, case: str, way: str, samples: Samples) -> record.Result:
    return record.Result(suite, case, way, record.SECONDS, samples.all, turns=samples.turns)


def _small(make: Ways, run: record.Run, workers: int, turns: int) -> None:
    """The floor is what TensorFlow takes to run a function with 50 operations and results."""
    ways = {OURS: make.start("small", workers), FLOOR: make.start("unshared", workers)}
    _in_turns(ways, turns)
    suite = f"50 all-reduces of 4 KB in one function, {workers} processes"
    run.results += [_result(suite, "each", name, way.samples) for name, way in ways.items()]


def _overlap(make: Ways, run: record.Run, workers: int, turns: int) -> None:
    """Emulated: the link sleeps, so that cores stay free."""
    computation = make.start("computation", workers)
    _in_turns({"computation": computation}, 2)
    size = LAYERS * WIDTH * WIDTH * 4
    rate = size * 2 * (workers - 1) / workers / (WIRE_SHARE * computation.seconds)
    computation.samples = Samples()
    faults = {"RDMATENSOR_FAULTS": f"rate={rate:.0f}"}
    ways = {
        "computation alone": computation,
        "all-reduces alone": make.start("wire", workers, faults),
        "step": make.start("deep", workers, faults),
    }
    _in_turns(ways, turns)
    alone, wire, step = (way.seconds for way in ways.values())
    hidden = 1 - (step - alone) / wire
    suite = (
        f"{LAYERS} layers, {size / 1e6:.1f} MB of gradients, {workers} processes, "
        f"emulated link of {rate / 1e6:.0f} MB/s"
    )
    for name, way in ways.items():
        result = _result(suite, "overlap", name, way.samples)
        run.results.append(
            dataclasses.replace(result, parameters={"hidden_share": round(hidden, 3)})
        )
    click.echo(
        f"{hidden:.0%} of {wire * 1e3:.1f} ms of communication were hidden behind {alone * 1e3:.1f} ms of "
        "computation (emulated)"
    )


CASES = {"steps": _steps, "small": _small, "overlap": _overlap}


@click.command(help=__doc__)
@quick_option("Take a fifth of the turns.")
@click.option("--workers", type=click.IntRange(2, 16), default=2, show_default=True)
@rival_python_option
@click.option("--only", multiple=True, type=click.Choice(list(CASES)), help="Repeatable.")
@json_option
def main(
    quick: bool, workers: int, rival_python: str, only: tuple[str, ...], json_file: Path | None
) -> None:
    with benchmark("Training", 130, quick, json_file) as (console, run, logs):
        began = time.monotonic()
        for name in only or CASES:
            with ExitStack() as stack:
                CASES[name](Ways(stack, logs, rival_python), run, workers, 8 if quick else 40)
        run.finish(time.monotonic() - began)
        report.show(console, run)


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: Apache-2.0
"""Train the classifier of train.py over gRPC and over grpc+rdma, and compare times, losses and paths.

    python examples/demo/compare.py --workers 2
    python examples/demo/compare.py --hosts node1,node2 --tasks-per-host 2

`rdmatensor launch` starts a parameter server, the workers and the chief; it gets all further options. The
exit status is 1 if a task fails, the classifier is poor, or a tensor that can be pushed went by gRPC.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import statistics
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from rdmatensor.units import duration, size

TRAIN = Path(__file__).with_name("train.py")
WARM_UP_STEPS = 5
MINIMUM_ACCURACY = 0.9
# The longest silence is that of all tasks importing TensorFlow at once.
SILENCE_S = 120
# Only TensorFlow's RecvTensor can send these, because they are not plain bytes.
UNAVOIDABLE = ("string", "variant", "resource")


@dataclass
class Run:
    """One training, and what its tasks sent: tensors and bytes by path, bytes by transport."""

    protocol: str
    losses: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    test_loss: float = 0.0
    accuracy: float = 0.0
    variable_bytes: int = 0
    tensors: Counter[str] = field(default_factory=Counter)
    bytes: Counter[str] = field(default_factory=Counter)
    transports: Counter[str] = field(default_factory=Counter)
    rpc_reasons: Counter[str] = field(default_factory=Counter)
    rpc_peers: list[str] = field(default_factory=list)

    def take(self, event: str, **said: Any) -> None:
        """Take what a task said."""
        if event == "steps":
            self.losses += said["losses"]
            self.seconds += said["seconds"]
        elif event == "result":
            vars(self).update(said)
        else:
            for path, each in said["paths"].items():
                self.tensors[path] += each["sent_tensors"]
                self.bytes[path] += each["sent_bytes"]
            for name, each in said["transports"].items():
                self.transports[name] += each["sent_bytes"]
            self.rpc_reasons.update(said["rpc_reasons"])
            by_rpc = (peer for peer in said["peers"] if peer["state"] in ("rpc", "refused"))
            self.rpc_peers += [f"{peer['task']}: {peer['why']}" for peer in by_rpc]

    def faults(self) -> list[str]:
        """Describe what is wrong with this run."""
        found = []
        if self.accuracy < MINIMUM_ACCURACY:
            found.append(f"test accuracy {self.accuracy:.3f} is below {MINIMUM_ACCURACY}")
        if self.protocol == "grpc":
            return found
        by_rpc = self.tensors["rpc"] - sum(self.rpc_reasons[reason] for reason in UNAVOIDABLE)
        if by_rpc > 0:
            why = ", ".join(self.rpc_reasons) or "fetched before they could be pushed"
            found.append(f"{by_rpc} tensors that can be pushed went by rpc: {why}")
        found += [f"gRPC only: {peer}" for peer in self.rpc_peers]
        return found


def train(asked: argparse.Namespace, further: list[str], protocol: str, progress: Progress) -> Run:
    """Train once. RuntimeError with the end of the output if it fails."""
    run, log = Run(protocol), []
    steps = WARM_UP_STEPS + asked.steps
    bar = progress.add_task("starting the tasks", total=steps, protocol=protocol)
    words = ["--protocol", protocol, "--ps", "1", "-n", str(asked.workers), *further]
    words += [str(TRAIN), "--steps", str(asked.steps), "--hidden", str(asked.hidden)]
    settings = {"CUDA_VISIBLE_DEVICES": "-1"}
    if protocol == "grpc":  # then the plugin is not even loaded
        settings["RDMATENSOR_DISABLE"] = "1"
    process = subprocess.Popen(
        [sys.executable, "-m", "rdmatensor", "launch", *words],
        env={**os.environ, **settings},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    assert process.stdout is not None
    try:
        signal.alarm(SILENCE_S)
        for line in process.stdout:
            signal.alarm(SILENCE_S)
            if said := re.fullmatch(r'\[\w+ \d+\] (\{"event".*\})\n', line):
                run.take(**json.loads(said[1]))
                loss = f"loss {run.losses[-1]:.4f}" if run.losses else ""
                progress.update(bar, completed=len(run.seconds), description=loss)
            else:
                log.append(line)
        if process.wait():
            raise RuntimeError("".join([*log[-40:], f"{protocol}: the tasks failed"]))
        return run
    finally:
        signal.alarm(0)
        process.terminate()
        process.wait()


def table_of(runs: list[Run], workers: int) -> Table:
    """Return a table with one column for each protocol."""
    nbytes = size(runs[0].variable_bytes)
    table = Table(title=f"Digits: {nbytes} of variables, parameter server, workers: {workers}")
    for name in ("", *(run.protocol for run in runs)):
        table.add_column(name, justify="right" if name else "left")
    tenths = [statistics.quantiles(run.seconds[WARM_UP_STEPS:] * 2, n=10) for run in runs]
    speeds = [tenths[0][4] / each[4] for each in tenths]
    last = [statistics.fmean(run.losses[-10 * workers :]) for run in runs]
    table.add_row("loss, last 10 steps", *(f"{loss:.4f}" for loss in last))
    table.add_row("test loss", *(f"{run.test_loss:.4f}" for run in runs))
    table.add_row("test accuracy", *(f"{run.accuracy:.1%}" for run in runs))
    # If one worker takes the steps in order, the losses are equal bit for bit.
    if workers == 1 and len(runs) > 1:
        same = runs[0].losses == runs[1].losses
        table.add_row("losses of all steps", "", "the same bits" if same else "differ")
    table.add_section()
    table.add_row("step time, median", *(duration(each[4]) for each in tenths))
    table.add_row("p10 .. p90", *(f"{duration(each[0])} .. {duration(each[8])}" for each in tenths))
    table.add_row(f"speed against {runs[0].protocol}", *(f"{speed:.2f}x" for speed in speeds))
    table.add_section()
    for path in runs[-1].tensors:
        table.add_row(f"sent {path}", *(sent(run, path) for run in runs))
    table.add_section()
    for name in sorted(runs[-1].transports):
        table.add_row(f"over {name}", *(size(run.transports[name]) for run in runs))
    return table


def sent(run: Run, path: str) -> str:
    """Return how much was sent by a path."""
    if run.protocol == "grpc":
        return "all, not counted" if path == "rpc" else "-"
    return f"{size(run.bytes[path])} in {run.tensors[path]}" if run.tensors[path] else "none"


def main() -> None:
    """Train over each protocol and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=150, help="timed steps (%(default)s)")
    parser.add_argument("--workers", type=int, default=2, help="workers (%(default)s)")
    parser.add_argument(
        "--hidden", type=int, default=2048,
        help="width of both hidden layers; %(default)s gives 17 MB of variables",
    )  # fmt: skip
    parser.add_argument("--protocol", choices=["grpc", "grpc+rdma"], help="only this one")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    asked, further = parser.parse_known_args()
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    signal.signal(signal.SIGALRM, lambda *_: sys.exit(f"the tasks said nothing for {SILENCE_S} s"))
    console = Console()
    columns = (
        TextColumn("{task.fields[protocol]:>9}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.description}"),
        TimeElapsedColumn(),
    )
    runs: list[Run] = []
    faults: list[str] = []
    with Progress(*columns, console=console) as progress:
        for protocol in [asked.protocol] if asked.protocol else ["grpc", "grpc+rdma"]:
            try:
                runs.append(train(asked, further, protocol, progress))
            except RuntimeError as error:
                faults.append(str(error))
                break
            faults += [f"{protocol}: {fault}" for fault in runs[-1].faults()]
    if runs:
        console.print(table_of(runs, asked.workers))
    for fault in faults:
        console.print(f"[red]{escape(fault)}[/red]")
    if asked.json:
        asked.json.write_text(
            json.dumps({"runs": [vars(run) for run in runs], "faults": faults}, indent=1)
        )
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()

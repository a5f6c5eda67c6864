# SPDX-License-Identifier: Apache-2.0
"""Tables and judgements of bench_tensorflow.py."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rich.table import Table

from rdmatensor.demo.paths import PATHS, STOCK, Paths
from rdmatensor.demo.timing import Distribution, duration, size
from tf_measure import Measured, Unused

_HISTOGRAM_BARS = " ▁▂▃▄▅▆▇█"
_HISTOGRAM_BINS = 24


@dataclass(frozen=True)
class Row:
    """One case as it is reported. `step_bytes` is what a step must move at least."""

    name: str
    step_bytes: int
    target: float | None
    measured: Measured

    def faults(self) -> list[str]:
        """Signs that a step did not move what it should, or not the way it should."""
        found = []
        stock = self.measured.samples[STOCK]
        if (moved := Distribution.of(stock.loopback).median) < self.step_bytes:
            found.append(f"{self.name}: a step over {STOCK} moved only {size(moved)} over loopback")
        for protocol, sent in self.measured.sent.items():
            pushed = sent.pushed_bytes() / self.measured.samples[protocol].steps
            if pushed < self.step_bytes:
                found.append(f"{self.name}: a step over {protocol} pushed only {size(pushed)}")
            found += [f"{self.name}: {fault}" for fault in sent.avoidable()]
        if self.measured.same_losses is False:
            found.append(f"{self.name}: the losses differ")
        return found

    def as_json(self) -> dict[str, Any]:
        """Distributions, raw times and the route."""
        return {
            "ratio": self.measured.ratio,
            "target": self.target,
            "step_bytes": self.step_bytes,
            "sent": {name: sent.as_json() for name, sent in self.measured.sent.items()},
            "same_losses": self.measured.same_losses,
            "protocols": {
                name: {
                    "time": samples.time.as_json(),
                    "seconds": samples.seconds,
                    "loopback_bytes_per_step": Distribution.of(samples.loopback).as_json(),
                }
                for name, samples in self.measured.samples.items()
            },
        }


def step_table(rows: list[Row]) -> Table:
    """Step times of all cases, a line for each protocol of each."""
    table = Table(title="Time of one step, both clusters in turns")
    for header in ("step", "protocol"):
        table.add_column(header)
    for header in ("median", "p10 .. p90", "ratio", "target", "over loopback"):
        table.add_column(header, justify="right")
    table.add_column("sent in a step")
    for row in rows:
        for index, (protocol, samples) in enumerate(row.measured.samples.items()):
            time = samples.time
            table.add_row(
                row.name if index == 0 else "",
                protocol,
                duration(time.median),
                f"{duration(time.p10)} .. {duration(time.p90)}",
                f"{row.measured.ratio:.1f}x" if index else "",
                _target(row) if index else "",
                size(Distribution.of(samples.loopback).median),
                _route(row.measured.sent.get(protocol), samples.steps),
                end_section=index == len(row.measured.samples) - 1,
            )
    return table


def _target(row: Row) -> str:
    if row.target is None:
        return "-"
    met = row.measured.ratio >= row.target
    return f"[green]{row.target:g}x met[/green]" if met else f"[red]{row.target:g}x missed[/red]"


def _route(sent: Paths | None, steps: int) -> str:
    """What a step sent by each path, the largest first: "dynamic 100 (105 MB), inline 1 (4 B)"."""
    if sent is None:
        return "all rpc"
    used = sorted(
        (path for path in PATHS if sent.tensors[path]), key=lambda path: -sent.bytes[path]
    )
    return ", ".join(
        f"{path} {sent.tensors[path] / steps:.4g} ({size(sent.bytes[path] / steps)})"
        for path in used
    )


def unused_table(unused: Unused) -> Table:
    """Both kinds of process side by side, with the shape of their distributions."""
    times = [second for samples in unused.samples.values() for second in samples.seconds]
    spread = Distribution.of(times)
    low, high = min(times), spread.p90 + (spread.p90 - spread.p10)
    table = Table(
        title="A local training step, plugin loaded but unused",
        caption=f"plugin against none: median {unused.difference:+.1%}; two processes of one kind differ "
        f"by up to {unused.noise:.1%}. Shapes cover {duration(low)} .. {duration(high)}.",
    )
    table.add_column("process")
    for header in ("median", "p10 .. p90"):
        table.add_column(header, justify="right")
    table.add_column("shape", min_width=_HISTOGRAM_BINS, no_wrap=True)
    for header in ("threads", "resident"):
        table.add_column(header, justify="right")
    for name, samples in unused.samples.items():
        facts = unused.facts[name]
        table.add_row(
            f"{'plugin' if facts['plugin'] else 'no plugin'} {name[-1]}",
            duration(samples.time.median),
            f"{duration(samples.time.p10)} .. {duration(samples.time.p90)}",
            _histogram(samples.seconds, low, high),
            str(facts["threads"]),
            size(facts["resident_bytes"]),
        )
    return table


def _histogram(values: list[float], low: float, high: float) -> str:
    """Bars of the values between `low` and `high`; those above are in the last."""
    counts = [0] * _HISTOGRAM_BINS
    for value in values:
        place = int((value - low) / (high - low) * _HISTOGRAM_BINS)
        counts[min(max(place, 0), _HISTOGRAM_BINS - 1)] += 1
    top = max(counts)
    return "".join(
        _HISTOGRAM_BARS[-(-count * (len(_HISTOGRAM_BARS) - 1) // top)] for count in counts
    )


def unused_faults(unused: Unused) -> list[str]:
    """Processes that are not of the kind they were meant to be."""
    return [
        f"process {name!r}: the plugin is {'loaded' if facts['plugin'] else 'not loaded'}"
        for name, facts in unused.facts.items()
        if facts["plugin"] != unused.wants_plugin(name)
    ]


def unused_json(unused: Unused) -> dict[str, Any]:
    """Distributions, raw times and facts of each process."""
    return {
        "difference_of_medians": unused.difference,
        "difference_within_a_kind": unused.noise,
        "processes": {
            name: {"time": s.time.as_json(), "seconds": s.seconds, **unused.facts[name]}
            for name, s in unused.samples.items()
        },
    }

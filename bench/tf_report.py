# SPDX-License-Identifier: Apache-2.0
"""Tables and judgements of the benchmarks of TensorFlow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from rich.table import Table

from rdmatensor.bench import record
from rdmatensor.demo.paths import PATHS, STOCK
from rdmatensor.demo.timing import Distribution, duration, size
from tf_measure import DYNAMIC, Result, Unused, ratio, same_losses

_HISTOGRAM_BARS = " ▁▂▃▄▅▆▇█"
_HISTOGRAM_BINS = 24


@dataclass(frozen=True)
class Row:
    """One case as it is reported: its results on all clusters, the slowest expected first; the last is what
    the others are compared with. `step_bytes` is what a step must move at least, `target` how many times as
    fast as stock gRPC it should be, `path` what its larger tensors take where there is a plan."""

    name: str
    step_bytes: int
    target: float | None
    results: list[Result]
    path: str = "static"

    def faults(self) -> list[str]:
        """Signs that a step did not move what it should, or not the way it should."""
        found = [fault for result in self.results for fault in self._faults_of(result)]
        if same_losses(self.results) is False:
            found.append("the losses differ")
        return [f"{self.name}: {fault}" for fault in found]

    def _faults_of(self, result: Result) -> Iterator[str]:
        name = result.way.name
        if result.way.protocol == STOCK:
            if (moved := Distribution.of(result.samples.loopback).median) < self.step_bytes:
                yield f"a step over {name} moved only {size(moved)} over loopback"
            return
        paths = result.timed.paths
        pushed = paths.pushed_bytes() / result.samples.steps
        if pushed < self.step_bytes:
            yield f"a step over {name} pushed only {size(pushed)}"
        yield from paths.avoidable()
        if not result.way.planned:
            return
        if paths.bytes[self.path] < result.samples.steps * self.step_bytes:
            yield f"tensors on {name} did not take the path {self.path}"
        if others := paths.tensors.total() - sum(paths.tensors[p] for p in {"static", self.path}):
            # Edges are refused a place before the first step.
            uses = {"busy": result.timed, "unfit": result.timed}
            uses |= {"over_budget": result.warm_up, "mismatched": result.warm_up}
            why = ", ".join(f"{use.total('plan', event)} {event}" for event, use in uses.items())
            yield f"{others} tensors on {name} did not go to their planned places ({why})"

    def records(
        self, suite: str, rivals: Mapping[str, str] | None = None
    ) -> Iterator[record.Result]:
        """For the record. `rivals` tells whom a way is compared with, by their names; without it the last,
        which is expected to be fastest, is compared with the first."""
        if rivals is None:
            slowest, fastest = self.results[0].way.name, self.results[-1].way.name
            rivals = {fastest: slowest} if fastest != slowest else {}
        for result in self.results:
            rival = rivals.get(result.way.name, "")
            yield record.Result(
                suite,
                self.name,
                result.way.name,
                record.SECONDS,
                result.samples.seconds,
                turns=result.samples.turns,
                parameters={
                    "step_bytes": self.step_bytes,
                    "steps": result.samples.steps,
                    "loopback_bytes": Distribution.of(result.samples.loopback).median,
                },
                rival=rival,
                target=self.target if rival and result.way.planned else None,
            )


def step_table(rows: list[Row]) -> Table:
    """Step times of all cases, a line for each cluster of each."""
    fast = rows[0].results[-1].way.name
    table = Table(title="Time of one step, all clusters in turns")
    for header in ("step", "cluster"):
        table.add_column(header)
    for header in ("median", "p10 .. p90", f"{fast} is faster", "target", "over loopback"):
        table.add_column(header, justify="right")
    table.add_column("sent in a step")
    for row in rows:
        for index, result in enumerate(row.results):
            time = result.samples.time
            last = index == len(row.results) - 1
            table.add_row(
                row.name if index == 0 else "",
                result.way.name,
                duration(time.median),
                f"{duration(time.p10)} .. {duration(time.p90)}",
                "" if last else _ratio(result, row.results[-1]),
                _target(row) if index == 0 else "",
                size(Distribution.of(result.samples.loopback).median),
                _route(result),
                end_section=last,
            )
    return table


def _ratio(slow: Result, fast: Result) -> str:
    """Of the medians; in brackets p10 .. p90 of what single turns gave."""
    median, turns = ratio(slow, fast)
    return f"{median:.3g}x ({turns.p10:.3g} .. {turns.p90:.3g})"


def _target(row: Row) -> str:
    if row.target is None or not row.results[-1].way.planned:
        return "-"
    met = ratio(row.results[0], row.results[-1])[0] >= row.target
    return f"[green]{row.target:g}x met[/green]" if met else f"[red]{row.target:g}x missed[/red]"


def _route(result: Result) -> str:
    """What a step sent by each path, the largest first: "dynamic 100 (105 MB), inline 1 (4 B)"."""
    if result.way.protocol == STOCK:
        return "all rpc"
    sent, steps = result.timed.paths, result.samples.steps
    used = sorted(
        (path for path in PATHS if sent.tensors[path]), key=lambda path: -sent.bytes[path]
    )
    return ", ".join(
        f"{path} {sent.tensors[path] / steps:.4g} ({size(sent.bytes[path] / steps)})"
        for path in used
    )


def plan_table(rows: list[Row]) -> Table:
    """What the plan did on the clusters that have one, and the memory that it takes."""
    table = Table(
        title="Planned tensors",
        caption="By step; busy is the sum of all steps. Places: of all graphs of the session, the check "
        "of values among them. The arena, where tensors are computed, at its largest. Both tasks together.",
    )
    table.add_column("step")
    for header in (
        "static",
        "lent",
        "in groups",
        "busy",
        "places",
        "of a step's bytes",
        "arena",
        "without plan",
    ):
        table.add_column(header, justify="right")
    for row in rows:
        unplanned = [_arena(r) for r in row.results if r.way.name == DYNAMIC.name]
        for result in row.results:
            if not result.way.planned:
                continue
            use, steps = result.timed, result.samples.steps
            places = use.total("plan", "place_bytes")
            groups = use.total("plan", "groups") / steps
            table.add_row(
                row.name,
                f"{use.paths.tensors['static'] / steps:.4g}",
                f"{use.total('fetched', 'in_place', 'tensors') / steps:.4g}",
                f"{use.total('plan', 'fused') / steps:.4g} in {groups:.4g}" if groups else "-",
                str(use.total("plan", "busy")),
                size(places),
                f"{places / row.step_bytes:.2f}",
                _arena(result),
                *(unplanned or "-"),
            )
    return table


def _arena(result: Result) -> str:
    return size(result.timed.total("arena", "peak_bytes"))


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


def unused_records(unused: Unused) -> Iterator[record.Result]:
    """Each process is a way of its own."""
    for name, samples in unused.samples.items():
        facts = unused.facts[name]
        yield record.Result(
            "plugin loaded but unused",
            "a local training step",
            f"{'plugin' if facts['plugin'] else 'no plugin'} {name[-1]}",
            record.SECONDS,
            samples.seconds,
            turns=samples.turns,
            parameters={key: facts[key] for key in ("threads", "resident_bytes")},
        )

# SPDX-License-Identifier: Apache-2.0
"""The tables of the TensorFlow benchmarks, and the checks that their measurements are valid."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Self

from rich.table import Table

from paths import PATHS, STOCK
from rdmatensor.bench import record
from rdmatensor.bench.report import excess
from rdmatensor.bench.turns import Distribution
from rdmatensor.units import duration, size
from tf_measure import BARE, DYNAMIC, FLOOR, LOCAL, Result, Unused, ratio, same_losses

_HISTOGRAM_BARS = " ▁▂▃▄▅▆▇█"
_HISTOGRAM_BINS = 24


def span(time: Distribution) -> str:
    """The 10th and the 90th percentile: "1.2 ms .. 1.5 ms"."""
    return f"{duration(time.p10)} .. {duration(time.p90)}"


def speedup(slow: Result, fast: Result) -> str:
    """The ratio of the medians, and percentiles of the ratios in single turns: "2.1x (2 .. 2.3)"."""
    median, turns = ratio(slow, fast)
    return f"{median:.3g}x ({turns.p10:.3g} .. {turns.p90:.3g})"


def verdict(value: float, target: float) -> str:
    """The target, in green if it is met and in red if it is missed."""
    met = value >= target
    return f"[green]{target:g}x met[/green]" if met else f"[red]{target:g}x missed[/red]"


@dataclass(frozen=True)
class Row:
    """One case on all clusters. The last result is the one that the others are compared with.

    A step moves at least `step_bytes` bytes. `target` is the speedup over the first cluster that we want.
    With a plan, tensors take `path` ("" if that is not checked, None if they travel inside messages). `floor`
    is the same step with nothing remote.
    """

    name: str
    step_bytes: int
    target: float | None
    results: list[Result]
    path: str | None = "static"
    floor: Result | None = None

    @classmethod
    def of(
        cls,
        name: str,
        step_bytes: int,
        target: float | None,
        results: Sequence[Result],
        path: str | None = "static",
    ) -> Self:
        """The row of results of which one may be the floor."""
        floor = next((result for result in results if result.way == LOCAL), None)
        others = [result for result in results if result is not floor]
        return cls(name, step_bytes, target, others, path, floor)

    def over_floor(self, result: Result) -> float | None:
        """The seconds that a step takes longer than the same step with nothing remote."""
        if self.floor is None or result is self.floor:
            return None
        return result.samples.spread.median - self.floor.samples.spread.median

    def faults(self) -> list[str]:
        """Reasons why the measurement is not valid."""
        found = [fault for result in self.results for fault in self.faults_of(result)]
        if same_losses(self.results) is False:
            found.append("the losses differ")
        return [f"{self.name}: {fault}" for fault in found]

    def faults_of(self, result: Result) -> Iterator[str]:
        """Steps of one cluster that did not move what they should, or not by the path that they should."""
        name = result.way.name
        if result.way.protocol == STOCK:
            if (moved := result.samples.carried_bytes) < self.step_bytes:
                yield f"a step over {name} moved only {size(moved)} over the network"
            return
        paths = result.timed.paths
        pushed = paths.pushed_bytes() / result.samples.steps
        if self.path is None:
            return
        if pushed < self.step_bytes:
            yield f"a step over {name} pushed only {size(pushed)}"
        yield from paths.avoidable()
        if not result.way.planned or not self.path:
            return
        if paths.bytes[self.path] < result.samples.steps * self.step_bytes:
            yield f"tensors on {name} did not take the path {self.path}"
        if others := paths.tensors.total() - sum(paths.tensors[p] for p in {"static", self.path}):
            # The plan refuses a place before the first step, while the case warms up.
            uses = {"busy": result.timed, "unfit": result.timed}
            uses |= {"over_budget": result.warm_up, "mismatched": result.warm_up}
            why = ", ".join(f"{use.total('plan', event)} {event}" for event, use in uses.items())
            yield f"{others} tensors on {name} did not go to their planned places ({why})"

    def route(self, result: Result) -> str:
        """What a step sent by each path, the largest first: "dynamic 100 (105 MB), inline 1 (4 B)"."""
        if result.way.protocol == STOCK:
            return "" if result.way == BARE else "all rpc"
        sent, steps = result.timed.paths, result.samples.steps
        used = sorted(filter(sent.tensors.get, PATHS), key=lambda path: -sent.bytes[path])
        return ", ".join(
            f"{path} {sent.tensors[path] / steps:.4g} ({size(sent.bytes[path] / steps)})"
            for path in used
        )

    def verdict(self) -> str:
        """Whether the planned cluster meets the target."""
        if self.target is None or not self.results[-1].way.planned:
            return "-"
        return verdict(ratio(self.results[0], self.results[-1])[0], self.target)

    def records(self, suite: str) -> Iterator[record.Result]:
        """The results for the record."""
        slowest, fastest = self.results[0].way.name, self.results[-1].way.name
        for result in [*self.results, *([self.floor] if self.floor else [])]:
            compared = result.way.name == fastest != slowest
            yield record.Result(
                suite,
                self.name,
                result.way.name,
                record.SECONDS,
                result.samples.all,
                turns=result.samples.turns,
                parameters={
                    "step_bytes": self.step_bytes,
                    "steps": result.samples.steps,
                    "network_bytes": result.samples.carried_bytes,
                    "over_floor_s": self.over_floor(result),
                    "cpu_s_of_a_step": result.cpu_seconds / result.samples.steps,
                },
                rival=slowest if compared else "",
                target=self.target if compared and result.way.planned else None,
            )


def step_table(
    rows: Sequence[Row], title: str = "Time of one step, all clusters in turns"
) -> Table:
    """The step times of all cases, a line for each cluster."""
    fast = rows[0].results[-1].way.name
    table = Table(title=title)
    for header in ("step", "cluster"):
        table.add_column(header)
    for header in (
        "median",
        "p10 .. p90",
        f"{fast} is faster",
        "target",
        FLOOR,
        "over the floor",
        "over the network",
        "processors",
    ):
        table.add_column(header, justify="right")
    table.add_column("sent in a step")
    for row in rows:
        for index, result in enumerate(row.results):
            time = result.samples.spread
            last = index == len(row.results) - 1
            table.add_row(
                row.name if index == 0 else "",
                result.way.name,
                duration(time.median),
                span(time),
                "" if last else speedup(result, row.results[-1]),
                row.verdict() if index == 0 else "",
                duration(row.floor.samples.spread.median) if row.floor and index == 0 else "",
                "" if (over := row.over_floor(result)) is None else excess(over),
                size(result.samples.carried_bytes),
                duration(result.cpu_seconds / result.samples.steps),
                row.route(result),
                end_section=last,
            )
    return table


def plan_table(rows: list[Row]) -> Table:
    """How planned tensors travelled, and the memory that their places take."""
    table = Table(
        title="Planned tensors",
        caption="Tensors per step; busy counts all steps. Places are those of all graphs of the session, "
        "including the graph that checks values. The arena is shown at its peak. Both tasks together.",
    )
    for header in ("step", "cluster"):
        table.add_column(header)
    for header in (
        "static",
        "lent",
        "in groups",
        "busy",
        "places",
        "places / step bytes",
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
                result.way.name,
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
    """The step times of all processes, with histograms."""
    times = [second for samples in unused.samples.values() for second in samples.all]
    spread = Distribution.of(times)
    low, high = min(times), spread.p90 + (spread.p90 - spread.p10)
    table = Table(
        title="A local training step, plugin loaded but unused",
        caption=f"The plugin changes the median by {unused.difference:+.1%}; two processes of one "
        f"kind differ by up to {unused.noise:.1%}. Histograms cover {duration(low)} .. {duration(high)}.",
    )
    table.add_column("process")
    for header in ("median", "p10 .. p90"):
        table.add_column(header, justify="right")
    table.add_column("histogram", min_width=_HISTOGRAM_BINS, no_wrap=True)
    for header in ("threads", "resident"):
        table.add_column(header, justify="right")
    for name, samples in unused.samples.items():
        facts = unused.facts[name]
        table.add_row(
            f"{'plugin' if facts['plugin'] else 'no plugin'} {name[-1]}",
            duration(samples.spread.median),
            span(samples.spread),
            _histogram(samples.all, low, high),
            str(facts["threads"]),
            size(facts["resident_bytes"]),
        )
    return table


def _histogram(values: list[float], low: float, high: float) -> str:
    """Bars for the values between `low` and `high`; the last bar includes larger values."""
    counts = [0] * _HISTOGRAM_BINS
    for value in values:
        place = int((value - low) / (high - low) * _HISTOGRAM_BINS)
        counts[min(max(place, 0), _HISTOGRAM_BINS - 1)] += 1
    top = max(counts)
    return "".join(
        _HISTOGRAM_BARS[-(-count * (len(_HISTOGRAM_BARS) - 1) // top)] for count in counts
    )


def unused_faults(unused: Unused) -> list[str]:
    """Processes in which the plugin is loaded by mistake, or missing."""
    return [
        f"process {name!r}: the plugin is {'loaded' if facts['plugin'] else 'not loaded'}"
        for name, facts in unused.facts.items()
        if facts["plugin"] != unused.wants_plugin(name)
    ]


def unused_records(unused: Unused) -> Iterator[record.Result]:
    """The results for the record, where each process is a way of its own."""
    for name, samples in unused.samples.items():
        facts = unused.facts[name]
        yield record.Result(
            "plugin loaded but unused",
            "a local training step",
            f"{'plugin' if facts['plugin'] else 'no plugin'} {name[-1]}",
            record.SECONDS,
            samples.all,
            turns=samples.turns,
            parameters={key: facts[key] for key in ("threads", "resident_bytes")},
        )

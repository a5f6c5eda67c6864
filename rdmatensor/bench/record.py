# SPDX-License-Identifier: Apache-2.0
"""What a benchmark writes down: the machine, every sample, and what the processes used. JSON in and out.

All benchmarks of this project write this one format, and report.py reads it.
"""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..demo import machine
from ..demo.timing import Distribution

# Raised when a field changes its meaning or goes; readers ignore fields that they do not know.
SCHEMA = 1
PACKAGES = (
    *("rdmatensor", "tensorflow", "tensorflow-cpu", "numpy", "cffi"),
    *("nixl", "mooncake-transfer-engine", "torch", "mpi4py"),
)
# Units of samples. Times are better when small, the rest when large.
SECONDS, BYTES_PER_SECOND, PER_SECOND = "s", "B/s", "1/s"
# Of curves: as many results in SECONDS, of the same case and way, are their times.
LOSS = "loss"
Parameter = str | int | float | bool | None


class BadRecord(ValueError):
    """A file that is no record, or one that this version cannot read."""


@dataclass(frozen=True)
class Environment:
    """What was measured on, and with. Loads are one-minute averages; `mtu` is 0 where there is none."""

    host: str
    processor: str
    cores: int
    memory_bytes: int
    kernel: str
    python: str
    versions: dict[str, str]
    load_before: float
    load_after: float | None = None
    transport: str = ""
    device: str = ""
    mtu: int = 0
    commit: str = ""

    @classmethod
    def here(
        cls,
        *,
        transport: str = "",
        device: str = "",
        mtu: int = 0,
        versions: Mapping[str, str] = {},
    ) -> Environment:
        """This machine now; `versions` are those of programs that are no Python packages."""
        about = machine.describe(PACKAGES)
        return cls(
            host=platform.node(),
            load_before=about.pop("load_average"),
            versions={**about.pop("versions"), **versions},
            transport=transport,
            device=device,
            mtu=mtu,
            commit=_commit(),
            **about,
        )

    @property
    def summary(self) -> str:
        """One line for people."""
        parts = [
            f"{self.processor}, {self.cores} cores, {self.memory_bytes / 2**30:.0f} GiB",
            f"Linux {self.kernel}, Python {self.python}",
            *(f"{name} {version}" for name, version in self.versions.items()),
            self.transport,
            self.device,
            f"MTU {self.mtu}" if self.mtu else "",
            f"commit {self.commit}" if self.commit else "",
            f"load average {self.load_before:.1f}",
        ]
        after = "" if self.load_after is None else f" before, {self.load_after:.1f} after"
        return ", ".join(filter(None, parts)) + after


@dataclass(frozen=True)
class Process:
    """What one process used: processor seconds of all its threads, most bytes resident at once."""

    name: str
    cpu_seconds: float
    peak_bytes: int

    @classmethod
    def of(cls, pid: int, name: str) -> Process:
        """Since the start of process `pid` of this machine. OSError when it has ended."""
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks = int(fields[11]) + int(fields[12])
        status = Path(f"/proc/{pid}/status").read_text().splitlines()
        peak = next((line.split()[1] for line in status if line.startswith("VmHWM:")), "0")
        return cls(name, ticks / os.sysconf("SC_CLK_TCK"), int(peak) * 1024)

    def since(self, before: Process) -> Process:
        """The same with the processor seconds that came after `before`; the peak is of the whole life."""
        return dataclasses.replace(self, cpu_seconds=self.cpu_seconds - before.cpu_seconds)


@dataclass(frozen=True)
class Result:
    """One case, done in one way (a library, a protocol, a setting).

    `samples` are in `unit`, each the value of one operation, of one step, or of one turn where a program
    tells only its own median; `turns` are the medians of single turns where ways took turns, so the same
    index of another way's was measured next to it. `nbytes` is the size of one operation, where that is what
    a case is swept over. `target` is what the ratio to `rival` should be at least, larger meaning that this
    way is better.
    """

    suite: str
    case: str
    way: str
    unit: str
    samples: list[float]
    nbytes: int | None = None
    turns: list[float] = field(default_factory=list)
    parameters: dict[str, Parameter] = field(default_factory=dict)
    processes: list[Process] = field(default_factory=list)
    rival: str = ""
    target: float | None = None

    @property
    def spread(self) -> Distribution:
        """Median, p10 and p90 of the samples, in `unit`. ValueError if there are none."""
        return Distribution.of(self.samples)

    @property
    def key(self) -> tuple[str, str, int | None]:
        """What results of different ways have in common when they measure the same."""
        return self.suite, self.case, self.nbytes

    def better_than(self, other: Result) -> float:
        """How many times as good as `other`, which measures the same: above 1 is faster."""
        mine, theirs = self.spread.median, other.spread.median
        return theirs / mine if self.unit == SECONDS else mine / theirs


@dataclass(frozen=True)
class Missing:
    """A rival or a tool that was not there, and how to get it."""

    name: str
    why: str
    remedy: str


@dataclass
class Run:
    """One run of one program. `faults` are what makes its numbers worthless, in words."""

    title: str
    environment: Environment
    quick: bool = False
    began: str = field(default_factory=lambda: time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()))
    seconds: float = 0.0
    results: list[Result] = field(default_factory=list)
    missing: list[Missing] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    def finish(self, seconds: float) -> None:
        """Note that the run took `seconds`, and the load at its end."""
        self.seconds = seconds
        self.environment = dataclasses.replace(self.environment, load_after=os.getloadavg()[0])

    def find(self, suite: str, case: str, nbytes: int | None, way: str) -> Result | None:
        """The result with these names."""
        wanted = (suite, case, nbytes)
        return next((r for r in self.results if r.key == wanted and r.way == way), None)

    def write(self, path: Path) -> None:
        """As JSON. The file appears at once, or not at all."""
        partial = path.with_name(path.name + ".part")
        partial.write_text(self.as_json() + "\n")
        partial.replace(path)

    def as_json(self) -> str:
        """One line, for `from_json`."""
        return json.dumps({"schema": SCHEMA, **dataclasses.asdict(self)})

    @classmethod
    def from_json(cls, text: str, source: str = "the text") -> Run:
        """The run in `text`. BadRecord, naming `source`, if it is none of this version's."""
        try:
            fields = json.loads(text)
        except ValueError as error:
            raise BadRecord(f"{source} is no JSON: {error}") from None
        if not isinstance(fields, dict) or fields.get("schema") != SCHEMA:
            found = fields.get("schema") if isinstance(fields, dict) else None
            raise BadRecord(
                f"{source}: schema {found!r}, not {SCHEMA}: measure again with this version"
            )
        try:
            return _run(fields)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise BadRecord(f"{source}: a field is missing or of another type: {error}") from None

    @classmethod
    def read(cls, path: Path) -> Run:
        """The run that `write` wrote. BadRecord; OSError if it cannot be read."""
        return cls.from_json(path.read_text(), str(path))


def thinned(samples: Sequence[float], most: int = 1000) -> list[float]:
    """At most `most` of the samples, evenly spaced in their order of size: quantiles stay what they are."""
    if len(samples) <= most:
        return list(samples)
    ordered = sorted(samples)
    return [ordered[index * (len(ordered) - 1) // (most - 1)] for index in range(most)]


def _run(fields: dict[str, Any]) -> Run:
    lists: dict[str, Any] = {
        "results": [_result(each) for each in fields["results"]],
        "missing": [Missing(**_known(Missing, each)) for each in fields["missing"]],
        "environment": Environment(**_known(Environment, fields["environment"])),
    }
    return Run(**{**_known(Run, fields), **lists})


def _result(fields: dict[str, Any]) -> Result:
    numbers = [float(sample) for sample in fields["samples"]]
    processes = [Process(**_known(Process, each)) for each in fields.get("processes", [])]
    return Result(**{**_known(Result, fields), "samples": numbers, "processes": processes})


def _known(kind: Any, fields: Mapping[str, Any]) -> dict[str, Any]:
    names = {each.name for each in dataclasses.fields(kind)}
    return {name: value for name, value in fields.items() if name in names}


def merged(title: str, runs: Iterable[Run]) -> Run:
    """One run with the results of all: the environment of the first, the load of the last, all versions.

    ValueError if there are none.
    """
    first, *others = list(runs)
    last = others[-1] if others else first
    whole = Run(title, first.environment, first.quick, first.began)
    versions: dict[str, str] = {}
    for run in (first, *others):
        versions |= run.environment.versions
        whole.results += run.results
        whole.missing += [each for each in run.missing if each not in whole.missing]
        whole.faults += run.faults
        whole.seconds += run.seconds
    whole.environment = dataclasses.replace(
        first.environment, versions=versions, load_after=last.environment.load_after
    )
    return whole


def reduced(run: Run, most: int) -> Run:
    """The same with at most `most` samples of each result, for a file that is kept; curves stay whole."""
    curves = {result.key for result in run.results if result.unit == LOSS}
    results = [
        result
        if result.key in curves
        else dataclasses.replace(result, samples=thinned(result.samples, most))
        for result in run.results
    ]
    return dataclasses.replace(run, results=results)


def _commit() -> str:
    """Of the sources in the current folder; "" when those are not ours, or there is no git."""
    if not Path("csrc/include/rdmatensor.h").exists():
        return ""
    command = ["git", "describe", "--always", "--dirty"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip()

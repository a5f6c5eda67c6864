# SPDX-License-Identifier: Apache-2.0
"""The record of a benchmark, in JSON: the machine and the samples.

All benchmarks of this project write this format, and report.py shows it.
"""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import statistics
import subprocess
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

# Increase it when a field changes its meaning or is removed. Readers ignore unknown fields.
SCHEMA = 1
# Units of samples. Smaller times are better; of the others, larger values are better.
SECONDS, BYTES_PER_SECOND, PER_SECOND = "s", "B/s", "1/s"
PACKAGES = (
    *("rdmatensor", "tensorflow", "tensorflow-cpu", "numpy", "cffi"),
    *("nixl", "mooncake-transfer-engine", "torch", "mpi4py", "scikit-learn"),
)
Parameter = str | int | float | bool | None


class BadRecord(ValueError):
    """The file is not a record, or this version cannot read it."""


@dataclass(frozen=True)
class Distribution:
    """Median, 10th and 90th percentile of `count` samples, in the samples' unit."""

    count: int
    p10: float
    median: float
    p90: float

    @classmethod
    def of(cls, samples: Sequence[float]) -> Distribution:
        """Summarise the samples, with linear interpolation between them. ValueError if there are none."""
        if not samples:
            raise ValueError("nothing was measured")
        several = samples if len(samples) > 1 else [*samples, *samples]
        tenths = statistics.quantiles(several, n=10, method="inclusive")
        return cls(len(samples), tenths[0], tenths[4], tenths[8])


@dataclass(frozen=True)
class Environment:
    """The machine. Loads are one-minute averages."""

    processor: str
    cores: int
    memory_bytes: int
    kernel: str
    python: str
    versions: dict[str, str]
    load_before: float
    load_after: float | None = None
    commit: str = ""

    @classmethod
    def here(cls) -> Environment:
        """This machine now."""
        return cls(
            processor=_processor(),
            cores=len(os.sched_getaffinity(0)),
            memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
            kernel=platform.release(),
            python=platform.python_version(),
            versions=dict(_versions()),
            load_before=os.getloadavg()[0],
            commit=_commit(),
        )

    @property
    def summary(self) -> str:
        """One line for people."""
        parts = [
            f"{self.processor}, {self.cores} cores, {self.memory_bytes / 2**30:.0f} GiB",
            f"Linux {self.kernel}, Python {self.python}",
            *(f"{name} {version}" for name, version in self.versions.items()),
            f"commit {self.commit}" if self.commit else "",
            f"load average {self.load_before:.1f}",
        ]
        after = "" if self.load_after is None else f" before, {self.load_after:.1f} after"
        return ", ".join(filter(None, parts)) + after


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith(("model name", "Model")):
            return line.partition(":")[2].strip()
    return platform.machine()


def _versions() -> Iterator[tuple[str, str]]:
    """The packages that are installed."""
    for package in PACKAGES:
        try:
            yield package, metadata.version(package)
        except metadata.PackageNotFoundError:
            continue


def _commit() -> str:
    """The commit of this folder; "" if there is none, or no git."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip()


@dataclass(frozen=True)
class Result:
    """One case, measured in one way (a library, a protocol, or a setting).

    Each of the `samples`, in `unit`, is one operation, one step, or the median of one turn. `nbytes` is the
    size of an operation, in cases that are measured for several sizes. `target` is the wanted ratio to
    `rival`, which is larger if this way is better.
    """

    suite: str
    case: str
    way: str
    unit: str
    samples: list[float]
    nbytes: int | None = None
    parameters: dict[str, Parameter] = field(default_factory=dict)
    rival: str = ""
    target: float | None = None

    @property
    def spread(self) -> Distribution:
        """The median, p10 and p90 of the samples. ValueError if there are none."""
        return Distribution.of(self.samples)

    @property
    def key(self) -> tuple[str, str, int | None]:
        """The key that results of different ways share if they measure the same."""
        return self.suite, self.case, self.nbytes

    def better_than(self, other: Result) -> float:
        """The ratio to `other`, which measures the same; above 1 means that this way is faster."""
        mine, theirs = self.spread.median, other.spread.median
        return theirs / mine if self.unit == SECONDS else mine / theirs


@dataclass(frozen=True)
class Missing:
    """A rival that was not available, and how to install it."""

    name: str
    why: str
    remedy: str


@dataclass
class Run:
    """One run of a benchmark. `faults` are reasons why its results are not valid."""

    title: str
    environment: Environment
    quick: bool = False
    began: str = field(default_factory=lambda: time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()))
    seconds: float = 0.0
    results: list[Result] = field(default_factory=list)
    missing: list[Missing] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    def finish(self, seconds: float) -> None:
        """Set the duration of the run, and the load at its end."""
        self.seconds = seconds
        self.environment = dataclasses.replace(self.environment, load_after=os.getloadavg()[0])

    def write(self, path: Path) -> None:
        """Write the run as JSON. The file appears complete, or not at all."""
        partial = path.with_name(path.name + ".part")
        partial.write_text(json.dumps({"schema": SCHEMA, **dataclasses.asdict(self)}) + "\n")
        partial.replace(path)

    @classmethod
    def from_fields(cls, fields: Any, source: str) -> Run:
        """The run of a dictionary. BadRecord, which names `source`, if this version cannot read it."""
        found = fields.get("schema") if isinstance(fields, dict) else None
        if found != SCHEMA:
            raise BadRecord(
                f"{source}: schema {found!r}, not {SCHEMA}: measure again with this version"
            )
        try:
            lists: dict[str, Any] = {
                "results": [_read(Result, each) for each in fields["results"]],
                "missing": [_read(Missing, each) for each in fields["missing"]],
                "environment": _read(Environment, fields["environment"]),
            }
            return _read(cls, {**fields, **lists})  # type: ignore[no-any-return]
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise BadRecord(f"{source}: a field is missing or of another type: {error}") from None

    @classmethod
    def read(cls, path: Path) -> Run:
        """The run in a file. BadRecord as for `from_fields`; OSError if the file cannot be read."""
        try:
            return cls.from_fields(json.loads(path.read_text()), str(path))
        except json.JSONDecodeError as error:
            raise BadRecord(f"{path} is not JSON: {error}") from None


def _read(kind: Any, fields: Mapping[str, Any]) -> Any:
    names = {each.name for each in dataclasses.fields(kind)}
    return kind(**{name: value for name, value in fields.items() if name in names})


def thinned(samples: Sequence[float], most: int = 1000) -> list[float]:
    """The samples, or `most` quantiles of them at equal distances if they are more.

    With `most` = 21 these are p0, p5 .. p100, so that median, p10 and p90 stay as they were.
    """
    if len(samples) <= most:
        return list(samples)
    return [float(each) for each in np.quantile(samples, np.linspace(0, 1, most))]


def merged(title: str, runs: Iterable[Run]) -> Run:
    """One run with all results and versions, the environment of the first, and the load after the last.

    ValueError if there are no runs.
    """
    first, *others = list(runs)
    whole = Run(title, first.environment, first.quick, first.began)
    versions: dict[str, str] = {}
    for run in (first, *others):
        versions |= run.environment.versions
        whole.results += run.results
        whole.missing += [each for each in run.missing if each not in whole.missing]
        whole.faults += run.faults
        whole.seconds += run.seconds
    whole.environment = dataclasses.replace(
        first.environment, versions=versions, load_after=run.environment.load_after
    )
    return whole


def named_apart(runs: Mapping[str, Run]) -> list[Run]:
    """The runs, where ways that several of them measured have the name of the run appended."""
    counts = Counter(
        each
        for run in runs.values()
        for each in {(result.key, result.way) for result in run.results}
    )

    def named(result: Result, way: str, name: str) -> str:
        return f"{way}, {name}" if counts[result.key, way] > 1 else way

    for name, run in runs.items():
        run.results = [
            dataclasses.replace(
                each, way=named(each, each.way, name), rival=named(each, each.rival, name)
            )
            for each in run.results
        ]
    return list(runs.values())

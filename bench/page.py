# SPDX-License-Identifier: Apache-2.0
"""docs/benchmarks.md, of the committed record bench/record.json: `page.py [--check]`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from record import Distribution, Result, Run
from report import by_key, named, over_floor, rival_of, value
from run import PARTS

ROOT = Path(__file__).resolve().parents[1]
RECORD, PAGE = ROOT / "bench" / "record.json", ROOT / "docs" / "benchmarks.md"
# With fewer samples than this, the brackets have the least and the greatest.
_FEW = 10

# Of each run, by its title, what the page shows: beginnings of suites, and what "CASE SIZE" begins with.
TABLES: dict[str, dict[str, Sequence[str]]] = {
    "A reference run": {
        "paper": [""],
        "TensorFlow steps": [
            *("1 x 1 KiB", "1 x 64", "1 x 16 MiB, fed and", "100 x 64", "100 x 4", "1000"),
            *("training step", "coordinator, 17", "eager addition,"),
        ],
        "TensorFlow steps, tcp over veth": ["1 x 64", "100 x 64", "1000"],
        "TensorFlow steps, tcp over veth at": ["1000"],
        "plugin loaded but unused": [""],
        "collectives of TensorFlow, 2 workers": ["all-reduce 4 ", "training"],
        "embeddings": [""],
        "convergence": ["digits CNN, to", "word embedding, to"],
        "50 all-reduces": [""],
        "16 layers": [""],
        "2 processes": ["state"],
        "2 processes, emulated": ["step, communication 1", "step, communication 4"],
        "chosen": [""],
        "VGG": ["the same", "step"],
        "micro, C": ["write latency 8", "write bandwidth 16 M"],
        "micro, Python": ["write latency 8", "notify and answer lat"],
        "rivals, Python": ["write latency 8", "write latency 128", "write and answer"],
        "rivals, Python, tcp over loopback": [],
        "rivals, Python, tcp over veth": ["write latency 64"],
        "tcp, veth": ["write of", "write bandwidth 1 M", "write bandwidth 64 M"],
        "tcp, veth with cubic": ["write bandwidth 64 M"],
        "stores": [""],
        "all-reduce of float32, 2": ["in place 4 K", "in place 64"],
        "torch.distributed, 2": [
            *("all_reduce 4 ", "all_reduce 64", "all_to_all 4 K", "send and receive 4 K"),
            *("DDP", "FSDP2"),
        ],
        "torch.distributed, 2 processes, tcp over loopback": [],
        "torch.distributed, 2 processes, tcp over veth": ["all_reduce 4 M"],
        "jax.distributed": ["psum 4 K", "psum 64", "all_gather", "all_to_all", "ppermute"],
        "training step, 17": ["what"],
    },
    "PyTorch, 4 processes": {"torch.distributed, 4": ["all_reduce 4 M", "DDP"]},
    "More workers": {"paper": ["AlexNet, 3", "GRU, 3"]},
    "One slow process, five beginnings": {"training": [""]},
    "Trees, 64 MiB": {"all-reduce": ["ring of 4", "DGX-1, all"]},
    "Elimination of samples": {"support vector machine, 4": [""]},
    "Verbs in the SoftRoCE lab": {
        "verbs": ["write bandwidth 1 M", "read bandwidth 1 M", "write lat", "read lat"],
        "TensorFlow": [""],
    },
}


def read(path: Path = RECORD) -> dict[str, Run]:
    """The runs of a committed record, by title."""
    runs = [Run.from_fields(each, str(path)) for each in json.loads(path.read_text())["runs"]]
    return {run.title: run for run in runs}


def machine(run: Run) -> str:
    """What a run was measured on, and when, as far as that was recorded."""
    there = run.environment
    parts = [
        there.processor if there.processor != "not recorded" else "a machine that was not recorded",
        f"{there.cores} cores",
        f"{there.memory_bytes / 2**30:.0f} GiB" if there.memory_bytes else "",
        f"Linux {there.kernel.partition('-')[0]}" if there.kernel else "",
        f"Python {there.python}" if there.python else "",
        *(f"{name} {version}".strip() for name, version in there.versions.items()),
        run.began[:10],
    ]
    return ", ".join(filter(None, parts))


def cell(result: Result) -> str:
    """The median, with p10 and p90, or with the extremes of few samples."""
    middle, samples = value(result.spread.median, result.unit), result.samples
    if len(samples) < 2:
        return middle
    spread = Distribution.of(samples)
    ends = (spread.p10, spread.p90) if len(samples) >= _FEW else (min(samples), max(samples))
    low, high = (value(each, result.unit) for each in ends)
    if low.partition(" ")[2] == high.partition(" ")[2]:
        low = low.partition(" ")[0]
    return f"{middle} ({low} .. {high})"


def row(suite: str, case: str, results: Sequence[Result]) -> str:
    """A line of a table: what was measured, each way, and what it is compared with."""
    ways = "; ".join(f"{each.way} {cell(each)}" for each in results)
    ratios = []
    for each in results:
        if rival := rival_of(each, results):
            wanted = f" (wanted {each.target:.3g})" if each.target else ""
            floor = f", {over} over the floor" if (over := over_floor(each)) else ""
            ratios.append(f"{each.way} {each.better_than(rival):.3g}x{wanted}{floor}")
    return f"| {suite}: {case} | {ways} | {'; '.join(ratios)} |"


def table(run: Run, suites: dict[str, Sequence[str]]) -> Iterator[str]:
    """The lines of a table."""
    yield "| | medians | compared |"
    yield "|---|---|---|"
    for (suite, case, nbytes), results in by_key(run.results).items():
        # The longest beginning decides.
        known = [each for each in suites if suite.startswith(each)]
        name = named(case, nbytes)
        if known and name.startswith(tuple(suites[max(known, key=len)])):
            yield row(suite, name, results)


def page(runs: dict[str, Run]) -> str:
    """The page."""
    text = (Path(__file__).parent / "page.md").read_text().rstrip()
    lines = [text.replace("PARTS", ", ".join(f"`{name}`" for name in PARTS))]
    for title, suites in TABLES.items():
        lines += ["", f"## {title}", "", f"{machine(runs[title])}.", ""]
        lines += table(runs[title], suites)
    return "\n".join(lines) + "\n"


def main() -> None:
    """Write the page; with --check, exit with 1 if it is not what the record gives."""
    made = page(read())
    if "--check" not in sys.argv:
        PAGE.write_text(made)
    elif PAGE.read_text() != made:
        raise SystemExit("docs/benchmarks.md is not what bench/record.json gives: run make docs")


if __name__ == "__main__":
    main()

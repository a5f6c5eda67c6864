# SPDX-License-Identifier: Apache-2.0
"""The README's picture and table from results of bench_tensorflow.py: step times on all clusters.

python bench/bench_tensorflow.py --json results.json
python bench/picture.py results.json docs/numbers.svg
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
import matplotlib as mpl
from matplotlib import pyplot as plt

from rdmatensor.demo.timing import duration

LOOKS = {
    "grpc": ("#9aa5b1", "grpc"),
    "dynamic": ("#66c2cd", "grpc+rdma, no plan"),
    "static": ("#0b7285", "grpc+rdma, planned"),
}
BAR = 0.27


def draw(results: dict[str, Any], out: Path) -> None:
    """One group of bars a case: median step time, p10 to p90 as a line, log axis."""
    cases = results["cases"]
    figure, axes = plt.subplots(figsize=(9, 0.62 * len(cases) + 1.4))
    for position, case in enumerate(cases.values()):
        for side, (cluster, (color, _)) in enumerate(LOOKS.items()):
            time = case["clusters"][cluster]["time"]
            at = position + (side - 1) * BAR
            axes.barh(at, time["median"] * 1e3, BAR, color=color)
            axes.plot([time["p10"] * 1e3, time["p90"] * 1e3], [at, at], color="#343a40", lw=1)
        grpc = case["clusters"]["grpc"]
        axes.text(
            grpc["time"]["p90"] * 1.1e3,
            position - BAR,
            f"{grpc['ratio']:.3g}x",
            va="center",
            fontweight="bold",
        )
    axes.set_xscale("log")
    axes.set_yticks(range(len(cases)), list(cases))
    axes.invert_yaxis()
    axes.margins(x=0.12)
    axes.set_xlabel("milliseconds a step: median, line from p10 to p90")
    axes.spines[["top", "right"]].set_visible(False)
    handles = [plt.Rectangle((0, 0), 1, 1, color=color) for color, _ in LOOKS.values()]
    axes.legend(
        handles,
        [label for _, label in LOOKS.values()],
        frameon=False,
        ncols=len(LOOKS),
        loc="upper center",
        bbox_to_anchor=(0.5, -0.4 / len(cases) - 0.04),
    )
    machine = results["machine"]
    versions = machine["versions"]
    axes.set_title(
        f"Two TensorFlow {versions['tensorflow-cpu']} servers on one machine "
        f"({machine['processor']}, {machine['cores']} cores), all in turns",
        fontsize=10,
        loc="left",
    )
    figure.savefig(out, bbox_inches="tight", metadata={"Date": None})


def markdown(results: dict[str, Any]) -> str:
    """A line a case: the median step time of each cluster, p10 .. p90 in brackets, and ratios to static."""
    lines = [
        "| a step | grpc | no plan | planned | grpc / planned | no plan / planned |",
        "|---|---|---|---|---|---|",
    ]
    for name, case in results["cases"].items():
        clusters = [case["clusters"][cluster] for cluster in LOOKS]
        cells = [_time(cluster["time"]) for cluster in clusters]
        cells += [_ratio(cluster) for cluster in clusters[:-1]]
        lines.append(f"| {' | '.join([name, *cells])} |")
    return "\n".join(lines)


def _time(time: dict[str, float]) -> str:
    median, low, high = (duration(time[key]) for key in ("median", "p10", "p90"))
    return f"{median} ({low} .. {high})"


def _ratio(cluster: dict[str, Any]) -> str:
    turns = cluster["ratio_in_turns"]
    return f"{cluster['ratio']:.3g}x ({turns['p10']:.3g} .. {turns['p90']:.3g})"


@click.command()
@click.argument("results", type=click.Path(exists=True, path_type=Path))
@click.argument("out", type=click.Path(path_type=Path))
def main(results: Path, out: Path) -> None:
    """Draw RESULTS, the JSON of bench_tensorflow.py, into the picture OUT (.svg, .png); print the table."""
    mpl.rcParams["svg.hashsalt"] = "rdmatensor"  # the same numbers make the same file
    fields = json.loads(results.read_text())
    draw(fields, out)
    print(markdown(fields))


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: Apache-2.0
"""Draws the README's picture from results of bench_tensorflow.py: step times over both protocols.

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

COLORS = {"grpc": "#9aa5b1", "grpc+rdma": "#0b7285"}
BAR = 0.38


def draw(results: dict[str, Any], out: Path) -> None:
    """One group of bars a case: median step time, p10 to p90 as a line, log axis."""
    cases = results["cases"]
    figure, axes = plt.subplots(figsize=(9, 0.55 * len(cases) + 1.4))
    for position, case in enumerate(cases.values()):
        for side, protocol in enumerate(("grpc", "grpc+rdma")):
            time = case["protocols"][protocol]["time"]
            at = position + (side - 0.5) * BAR
            axes.barh(at, time["median"] * 1e3, BAR, color=COLORS[protocol])
            axes.plot([time["p10"] * 1e3, time["p90"] * 1e3], [at, at], color="#343a40", lw=1)
        end = case["protocols"]["grpc"]["time"]["p90"] * 1e3
        axes.text(end * 1.1, position, f"{case['ratio']:.3g}x", va="center", fontweight="bold")
    axes.set_xscale("log")
    axes.set_yticks(range(len(cases)), list(cases))
    axes.invert_yaxis()
    axes.margins(x=0.12)
    axes.set_xlabel("milliseconds a step: median, line from p10 to p90")
    axes.spines[["top", "right"]].set_visible(False)
    handles = [plt.Rectangle((0, 0), 1, 1, color=color) for color in COLORS.values()]
    axes.legend(handles, list(COLORS), frameon=False, loc="lower right")
    machine = results["machine"]
    versions = machine["versions"]
    axes.set_title(
        f"Two TensorFlow {versions['tensorflow-cpu']} servers on one machine "
        f"({machine['processor']}, {machine['cores']} cores), both protocols in turns",
        fontsize=10,
        loc="left",
    )
    figure.savefig(out, bbox_inches="tight", metadata={"Date": None})


@click.command()
@click.argument("results", type=click.Path(exists=True, path_type=Path))
@click.argument("out", type=click.Path(path_type=Path))
def main(results: Path, out: Path) -> None:
    """Draw RESULTS, the JSON of bench_tensorflow.py, into the picture OUT (.svg, .png)."""
    mpl.rcParams["svg.hashsalt"] = "rdmatensor"  # the same numbers make the same file
    draw(json.loads(results.read_text()), out)


if __name__ == "__main__":
    main()

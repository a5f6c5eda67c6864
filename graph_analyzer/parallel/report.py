# SPDX-License-Identifier: Apache-2.0
"""Show how layers are shared, and what to expect, as text and as a page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from rich.console import Group, RenderableType
from rich.table import Table

from rdmatensor.units import duration, size

from ..report.cost import Network
from ..report.html import render
from .balance import Choice, choices, intensity
from .layers import NETWORKS, Layer
from .timeline import REPORTED, Compute, Point, scaling

_TEMPLATE = Path(__file__).with_name("page.html.j2")
_GOOD = 0.85


@dataclass(frozen=True)
class Study:
    """A model, its cluster, and where the times of its layers come from."""

    title: str
    layers: Sequence[Layer]
    compute: Sequence[Compute]
    source: str
    """What the times are: "measured here in batches of 4"."""
    part: float | None
    """What the times of single layers added up to, of that of the whole model, to which they were scaled.

    None if that was not measured.
    """
    batch: int
    workers: int
    network: Network

    @property
    def shares(self) -> list[Choice]:
        """How each layer is shared."""
        return choices(self.layers, self.batch, self.workers)

    @property
    def points(self) -> list[Point]:
        """What to expect of 2, 4, 8, ... workers."""
        return scaling(self.layers, self.compute, self.batch, self.network)


LAYER_COLUMNS = ("layer", "weights", "flop/B", "computes", "share", "ideal", "groups", "if data",
                 "as shared")  # fmt: skip
POINT_COLUMNS = ("workers", "batch each", "data parallel", "efficiency", "as shared", "efficiency")


def headline(study: Study) -> str:
    """Return the cluster, and where the times come from, in one line."""
    network = study.network
    return (
        f"{study.workers} workers, a batch of {study.batch} in all, "
        f"{network.bandwidth * 8 / 1e9:g} Gbit/s, {duration(network.latency)}; "
        f"times of layers: {study.source}"
    )


def layer_rows(study: Study) -> list[tuple[str, ...]]:
    """Return a row of LAYER_COLUMNS for each layer."""
    own = study.batch / study.workers
    return [
        (
            each.layer.name,
            size(4 * each.layer.weights),
            f"{intensity(each.layer, own):,.0f}",
            duration(time.ahead(own) + time.back(own)),
            each.way,
            f"{each.ideal:.2f}" if each.layer.can_be_cut else "-",
            str(each.groups),
            size(each.data_bytes),
            size(each.bytes),
        )
        for each, time in zip(study.shares, study.compute, strict=True)
    ]


def point_rows(study: Study) -> list[tuple[str, ...]]:
    """Return a row of POINT_COLUMNS for each number of workers."""
    return [
        (
            str(each.workers),
            f"{study.batch / each.workers:g}",
            duration(each.data_seconds),
            f"{each.data_efficiency:.0%}",
            duration(each.best_seconds),
            f"{each.best_efficiency:.0%}",
        )
        for each in study.points
    ]


def errors(study: Study) -> list[str]:
    """Return how far the model is off, where that is known."""
    found = []
    if study.part:
        found.append(
            f"Measured here: layer by layer, times add up to {study.part:.0%} of a whole forward and "
            "backward pass. They are scaled to it."
        )
    offs = [each.computed(list(NETWORKS[each.network]())) / each.speedup - 1 for each in REPORTED]
    found.append(
        f"Computed for the {len(offs)} scalings that PCL-DNN's paper reports, with assumed speeds of its "
        f"nodes: {min(offs):+.0%} to {max(offs):+.0%} off, the median {median(offs):+.0%}. The model knows "
        "no slow workers, and with --gflops not that small batches compute more slowly: these are upper "
        "bounds."
    )
    return found


def advice(study: Study) -> list[str]:
    """Return sentences that say up to how many workers to go, and which layers to cut."""
    points = study.points
    good = [each.workers for each in points if each.data_efficiency >= _GOOD]
    found = [
        f"Data parallel, rt.sync.Sharded() keeps {_GOOD:.0%} of each worker up to {max(good)} workers."
        if good
        else f"Data parallel, even {points[0].workers} workers keep less than {_GOOD:.0%} each."
        if points
        else "A batch of one cannot be shared."
    ]
    cut = [each for each in study.shares if each.way != "data"]
    if cut:
        saved = sum(each.data_bytes - each.bytes for each in cut)
        found.append(
            f"To cut {', '.join(each.layer.name for each in cut)} saves {size(saved)} of "
            f"{size(sum(each.data_bytes for each in study.shares))} that a worker exchanges in each step."
        )
    return found


def text(study: Study) -> RenderableType:
    """Render the study as tables for a terminal."""
    layers = _table("Layers", LAYER_COLUMNS, layer_rows(study))
    points = _table("Steps, computed", POINT_COLUMNS, point_rows(study))
    lines = [f"• {each}" for each in (*advice(study), *errors(study))]
    return Group(headline(study), "", layers, "", points, "", *lines)


def _table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    table = Table(title=title, title_justify="left", box=None, header_style="dim")
    for name in columns:
        table.add_column(
            name, no_wrap=True, justify="left" if name in ("layer", "share") else "right"
        )
    for row in rows:
        table.add_row(*row)
    return table


def page(study: Study) -> str:
    """Render the study as a self-contained HTML page. Raises AnalysisError without jinja2."""
    return render(
        _TEMPLATE,
        title=study.title,
        headline=headline(study),
        layer_columns=LAYER_COLUMNS,
        layer_rows=layer_rows(study),
        point_columns=POINT_COLUMNS,
        point_rows=point_rows(study),
        points=study.points,
        advice=advice(study),
        errors=errors(study),
    )

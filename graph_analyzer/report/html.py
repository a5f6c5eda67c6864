# SPDX-License-Identifier: Apache-2.0
"""Render a plan as a self-contained HTML page."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rdmatensor.units import duration, short_task, size

from ..model.errors import AnalysisError
from ..model.plan import CLASSES, PATHS, TransferPlan
from . import arena, diagram, schedule, treemap
from .advice import advise, hot_spots
from .cost import Network, predict
from .text import classes_text, cost_text, headline, loop_text, loops_text, shape_text, static_text

_TEMPLATE = Path(__file__).with_name("page.html.j2")


@dataclass(frozen=True)
class Cell:
    """A cell of the link matrix. `weight` is relative to the link that carries most (0..1)."""

    text: str
    title: str
    weight: float


def to_html(
    plan: TransferPlan,
    path: Path | str,
    network: Network | None = None,
    title: str = "Transfer plan",
) -> None:
    """Write the page: tasks and links, variables, a timeline, the memory of receivers, all tensors.

    Raises AnalysisError without jinja2.
    """
    Path(path).write_text(page(plan, network, title))


def page(plan: TransferPlan, network: Network | None = None, title: str = "Transfer plan") -> str:
    """Render a plan as the text of the page. Raises AnalysisError without jinja2."""
    network = network or Network()
    totals = plan.bytes_by_path()
    return render(
        _TEMPLATE,
        title=title,
        headline=headline(plan),
        classes=classes_text(plan),
        cost=cost_text(plan, network),
        loops=loops_text(plan),
        cards=_cards(plan, network),
        parts=[(name, part / (plan.step_bytes or 1)) for name, part in totals.items() if part],
        tasks=[short_task(task) for task in plan.tasks],
        matrix=_matrix(plan),
        spots=hot_spots(plan),
        memory=plan.memory(),
        advice=advise(plan, network),
        diagram=diagram.diagram(plan),
        treemap=treemap.treemap(plan),
        schedule=schedule.schedule(plan, network),
        row=schedule.ROW,
        map_height=treemap.HEIGHT,
        arenas=arena.arenas(plan),
        width=arena.WIDTH,
        height=arena.HEIGHT,
        options=plan.options,
        control_edges=plan.control_edges,
        class_names=CLASSES,
        path_names=PATHS,
        rows=_rows(plan),
        short=short_task,
        size=size,
    )


def render(template: Path, **values: Any) -> str:
    """Fill in a page's template. Raises AnalysisError without jinja2."""
    try:
        import jinja2
    except ImportError:
        raise AnalysisError(
            "the HTML page needs jinja2: pip install 'rdmatensor[analyzer]'"
        ) from None
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    return environment.from_string(template.read_text()).render(values)


def _cards(plan: TransferPlan, network: Network) -> list[tuple[str, str]]:
    return [
        ("bytes per step", size(plan.step_bytes)),
        ("static", static_text(plan)),
        ("tensors", f"{len(plan.edges):,}"),
        ("places at the receivers", size(plan.arena_bytes)),
        ("communication, at least", duration(predict(plan, network).seconds)),
    ]


def _matrix(plan: TransferPlan) -> list[tuple[str, list[Cell]]]:
    totals = plan.bytes_by_link()
    tensors: dict[tuple[str, str], int] = {}
    for edge in plan.edges:
        pair = edge.source, edge.destination
        tensors[pair] = tensors.get(pair, 0) + 1
    most = max(totals.values(), default=0) or 1

    def cell(source: str, destination: str) -> Cell:
        pair = source, destination
        if pair not in tensors:
            return Cell("", "nothing", 0.0)
        title = f"{short_task(source)} to {short_task(destination)}: {tensors[pair]:,} tensors"
        return Cell(size(totals[pair]), title, totals[pair] / most)

    return [
        (short_task(source), [cell(source, destination) for destination in plan.tasks])
        for source in plan.tasks
    ]


def _rows(plan: TransferPlan) -> str:
    """Return the edges as JSON for a script element. The script of the page names the columns."""
    rows = [
        [
            edge.variable or edge.name,
            edge.name,
            short_task(edge.source),
            short_task(edge.destination),
            edge.dtype,
            shape_text(edge.shape),
            edge.step_bytes,
            edge.plan_class + (f" ({loop_text(edge)})" if edge.in_loop else ""),
            edge.reason,
            edge.first,
            edge.ring,
            edge.group,
            edge.offset,
        ]
        for edge in plan.edges
    ]
    text = json.dumps(rows, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")

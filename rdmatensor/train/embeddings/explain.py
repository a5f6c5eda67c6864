# SPDX-License-Identifier: Apache-2.0
"""Explain what parallelize() chose, and why: as text, and as a page with pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

from ...errors import UsageError
from ...units import count, duration, size
from .choice import Size, curve
from .placement import WAYS, Way

_COLOURS = {"dense": "#566573", "gather": "#b7950b", "owners": "#2471a3"}
_MEANING = {
    "dense": "all-reduce of the whole gradient",
    "gather": "all-gather of rows",
    "owners": "rows with owners, all-to-all",
}


@dataclass(frozen=True)
class Table:
    """A table of embeddings. `use` and `seconds`, by way, are None and empty if nothing was measured."""

    name: str
    rows: int
    width: int
    way: Way
    partitions: int
    why: str
    use: Size | None = None
    seconds: Mapping[Way, float] = field(default_factory=dict)

    @classmethod
    def of(cls, layer: Any, way: Way, partitions: int, why: str) -> Table:
        """Return the table of an Embedding."""
        return cls(layer.name, layer.input_dim, layer.output_dim, way, partitions, why)


@dataclass(frozen=True)
class Explanation:
    """The answer of explain(): print it, or write() it as a page."""

    processes: int
    tables: Sequence[Table]
    others: tuple[int, int]
    """How many other variables there are, and their bytes. Their gradients are all-reduced."""
    samples: Mapping[int, float]
    """Measured seconds by number of partitions, if that was measured."""

    def __str__(self) -> str:
        lines = [f"{self.processes} process" + ("" if self.processes == 1 else "es")]
        cells = [_HEADINGS, *(self._cells(each) for each in self.tables)]
        widths = [max(len(row[i]) for row in cells) for i in range(len(_HEADINGS))]
        lines += [
            "  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip()
            for row in cells
        ]
        number, nbytes = self.others
        lines.append(f"{count(number, 'other variable')}, {size(nbytes)}: all-reduce")
        if self.samples:
            lines.append("partitions, measured: " + ", ".join(
                f"{parts}: {duration(seconds)}" for parts, seconds in sorted(self.samples.items())
            ))  # fmt: skip
        return "\n".join(lines)

    def _cells(self, table: Table) -> Sequence[str]:
        use = table.use
        return (
            table.name,
            f"{table.rows:,} x {table.width}",
            "-" if use is None else f"{use.share:.2g}",
            *(duration(table.seconds[way]) if way in table.seconds else "-" for way in WAYS),
            "-" if use is None else size(use.sent_bytes(table.way, self.processes)),
            table.way + (f" ({table.partitions})" if table.way == "owners" else ""),
            table.why,
        )

    def write(self, path: str | Path) -> None:
        """Write a page (HTML, with SVG inside) that needs nothing else."""
        parts = [_bars(each) for each in self.tables if each.seconds]
        if len(self.samples) >= 3:
            parts.append(_curve(self.samples))
        body = "\n".join(f"<figure>{each}</figure>" for each in parts)
        Path(path).write_text(
            '<!doctype html><html lang="en"><meta charset="utf-8"><title>parallelize()</title>'
            "<style>body{font-family:sans-serif;margin:2em}pre{overflow-x:auto}</style>"
            f"<h1>What parallelize() chose</h1><pre>{escape(str(self))}</pre>\n{body}</html>\n",
            encoding="utf-8",
        )


_HEADINGS = ("table", "rows", "share", *WAYS, "sends", "chosen", "why")


def explain(model: Any) -> Explanation:
    """Return what parallelize() chose for the model's tables of embeddings, with predicted seconds per step.

    `share` is the part of a table's rows that a batch of one process uses. Raises UsageError if parallelize()
    did not return the model.
    """
    found: Explanation | None = getattr(model, "_rdmatensor_explanation", None)
    if found is None:
        raise UsageError("explain() takes the model that parallelize() returned")
    return found


def _bars(table: Table) -> str:
    longest = max(table.seconds.values())
    lines = [
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 640 100" width="640" font-size="12" '
        f'role="img"><title>{escape(table.name)}</title><text x="0" y="14">{escape(table.name)}: '
        "predicted time of a step</text>"
    ]
    for i, way in enumerate(WAYS):
        seconds = table.seconds.get(way)
        if seconds is None:
            continue
        y, width = 24 + 24 * i, 300 * seconds / longest
        weight = "bold" if way == table.way else "normal"
        lines.append(
            f'<text x="0" y="{y + 14}" font-weight="{weight}">{_MEANING[way]}</text>'
            f'<rect x="220" y="{y}" width="{width:.1f}" height="18" fill="{_COLOURS[way]}"/>'
            f'<text x="{226 + width:.1f}" y="{y + 14}">{duration(seconds)}</text>'
        )
    return "".join([*lines, "</svg>"])


def _curve(samples: Mapping[int, float]) -> str:
    b, a, c = curve(samples)
    low, high = min(samples), max(samples)
    top = max(samples.values()) * 1.2

    def at(parts: float, seconds: float) -> str:
        return f"{40 + 560 * (parts - low) / (high - low):.1f},{180 - 150 * seconds / top:.1f}"

    steps = [low + (high - low) * i / 60 for i in range(61)]
    line = " ".join(at(p, b / p + a * (p - 1) + c) for p in steps)
    dots = "".join(
        f'<circle cx="{at(p, s).split(",")[0]}" cy="{at(p, s).split(",")[1]}" r="4"/>'
        f'<text x="{at(p, s).split(",")[0]}" y="196" text-anchor="middle">{p}</text>'
        for p, s in samples.items()
    )
    return (
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 640 200" width="640" font-size="12" '
        'role="img"><title>partitions</title><text x="0" y="14">time of a step by the number of '
        f'partitions: measured, and fitted</text><polyline points="{line}" fill="none" '
        f'stroke="#2471a3"/>{dots}</svg>'
    )

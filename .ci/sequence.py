# SPDX-License-Identifier: Apache-2.0
"""Sequence diagrams of the documentation as SVG, so that its pages need no script from the network.

Reads the part of Mermaid's language that they use: participant, A->>B: text, Note over A[,B]: text, alt,
else, end. Lines and texts have the colour of the page's text, light or dark.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from html import escape
from typing import NamedTuple

COLUMN, MARGIN, ROW, LINE = 210, 12, 34, 15
CHARACTERS_OF_A_COLUMN = 30

_PARTICIPANT = re.compile(r"participant (\w+)(?: as (.*))?")
_MESSAGE = re.compile(r"(\w+)->>(\w+): ?(.*)")
_NOTE = re.compile(r"Note over (\w+)(?:,\s*(\w+))?: ?(.*)")
_BLOCK = re.compile(r"(alt|else|end)\b ?(.*)")


class Step(NamedTuple):
    """One line of a diagram: "message", "note", "alt", "else" or "end", from one column to another."""

    kind: str
    first: int
    last: int
    text: str


def parse(source: str) -> tuple[list[str], list[Step]]:
    """The participants' titles, and the steps. ValueError for a line that is none of those above."""
    names: list[str] = []
    titles: list[str] = []
    steps: list[Step] = []
    lines = [line.strip() for line in source.strip().splitlines()]
    if lines[:1] != ["sequenceDiagram"]:
        raise ValueError(f"only sequence diagrams are drawn, and this begins with {lines[:1]}")
    for line in filter(None, lines[1:]):
        if match := _PARTICIPANT.fullmatch(line):
            names.append(match[1])
            titles.append(match[2] or match[1])
        elif match := _MESSAGE.fullmatch(line):
            steps.append(Step("message", names.index(match[1]), names.index(match[2]), match[3]))
        elif match := _NOTE.fullmatch(line):
            first, last = names.index(match[1]), names.index(match[2] or match[1])
            steps.append(Step("note", min(first, last), max(first, last), match[3]))
        elif match := _BLOCK.fullmatch(line):
            steps.append(Step(match[1], 0, len(names) - 1, match[2]))
        else:
            raise ValueError(f"no line of a sequence diagram: {line}")
    return titles, steps


def _x(column: int) -> int:
    return MARGIN + COLUMN // 2 + column * COLUMN


def _texts(x: float, y: float, lines: list[str], style: str = "") -> Iterator[str]:
    for number, line in enumerate(lines):
        yield f'<text x="{x}" y="{y + number * LINE}" {style}>{escape(line)}</text>'


def _wrap(text: str, columns: float) -> list[str]:
    return textwrap.wrap(text, max(12, int(CHARACTERS_OF_A_COLUMN * columns))) or [""]


def _message(step: Step, y: float) -> tuple[list[str], float]:
    left, right = _x(step.first), _x(step.last)
    lines = _wrap(step.text, max(1, abs(step.last - step.first)))
    y += LINE * len(lines)
    way = 1 if right > left else -1
    tip = f"{right},{y} {right - 9 * way},{y - 4} {right - 9 * way},{y + 4}"
    drawn = [
        *_texts((left + right) / 2, y - 6 - LINE * (len(lines) - 1), lines),
        f'<line x1="{left}" y1="{y}" x2="{right - 8 * way}" y2="{y}"/>',
        f'<polygon points="{tip}"/>',
    ]
    return drawn, y + ROW - LINE


def _note(step: Step, y: float) -> tuple[list[str], float]:
    left, right = _x(step.first) - COLUMN * 0.45, _x(step.last) + COLUMN * 0.45
    lines = _wrap(step.text, step.last - step.first + 0.9)
    height = LINE * len(lines) + 8
    box = f'<rect x="{left}" y="{y - 4}" width="{right - left}" height="{height}" class="note"/>'
    return [box, *_texts((left + right) / 2, y + LINE - 5, lines)], y + height + 6


def draw(source: str) -> str:
    """The diagram as one element <svg>, without empty lines."""
    titles, steps = parse(source)
    width = 2 * MARGIN + COLUMN * len(titles)
    heads = [_wrap(title, 0.9) for title in titles]
    top = LINE * max(map(len, heads)) + 16
    body: list[str] = []
    y = float(top + 14)
    opened: list[float] = []
    for step in steps:
        if step.kind == "message":
            drawn, y = _message(step, y)
        elif step.kind == "note":
            drawn, y = _note(step, y)
        else:
            drawn = []
            if step.kind == "alt":
                opened.append(y)
            elif step.kind == "else":
                drawn.append(
                    f'<line x1="4" y1="{y}" x2="{width - 4}" y2="{y}" stroke-dasharray="4"/>'
                )
            else:
                start = opened.pop()
                drawn.append(
                    f'<rect x="4" y="{start}" width="{width - 8}" height="{y - start}" class="block"/>'
                )
            if step.kind != "end":
                drawn += _texts(12, y + LINE, _wrap(f"[{step.text}]", 2), 'class="case"')
                y += LINE
            y += 8
        body += drawn
    for column, head in enumerate(heads):
        x = _x(column)
        body += [
            f'<line x1="{x}" y1="{top}" x2="{x}" y2="{y}" class="life"/>',
            f'<rect x="{x - COLUMN * 0.45}" y="2" width="{COLUMN * 0.9}" height="{top - 2}" class="head"/>',
            *_texts(x, 17, head),
        ]
    body_text = "\n".join(body)
    return (
        f'<svg class="sequence" viewBox="0 0 {width} {y + 4:.0f}" width="{width}" role="img" '
        f'xmlns="http://www.w3.org/2000/svg">\n{body_text}\n</svg>'
    )

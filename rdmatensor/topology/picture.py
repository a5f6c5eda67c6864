# SPDX-License-Identifier: Apache-2.0
"""Draws a topology, and the trees of a packing in it, as SVG."""

from __future__ import annotations

from html import escape
from math import cos, pi, sin, sqrt

from .. import units
from .model import Topology
from .pack import Packing

_SIZE, _RADIUS, _NODE = 640, 260, 24
_COLOURS = ("#c0392b", "#2471a3", "#229954", "#b7950b", "#7d3c98", "#d35400", "#117a65", "#566573")


def svg(topology: Topology, packing: Packing | None = None) -> str:
    """Returns a picture: members in a circle, switches inside, links as wide as their bandwidth.

    With a packing, each tree has a colour, and its edges lead from parent to child.
    """
    at = _places(topology)
    widest = max((link.bandwidth for link in topology.links), default=1.0)
    lines = []
    for link in topology.links:
        if topology.index[link.source] > topology.index[link.target] and _duplex(
            topology, link.target, link.source
        ):
            continue
        width = 1 + 5 * sqrt(link.bandwidth / widest)
        title = f"{link.source} - {link.target}: {units.size(link.bandwidth)}/s"
        lines.append(_line(at[link.source], at[link.target], "#ccd1d1", width, title))
    for number, tree in enumerate(packing.trees if packing else ()):
        shift = 3 * (number - (len(packing.trees) - 1) / 2) if packing else 0.0
        title = f"tree {number + 1}, root {tree.root}: {units.size(tree.rate)}/s"
        for node, parent in enumerate(tree.parents):
            if node != parent:
                ends = [_shifted(at[topology.members[each].name], shift) for each in (parent, node)]
                colour = _COLOURS[number % len(_COLOURS)]
                lines.append(_line(ends[0], ends[1], colour, 2, title))
    nodes = [_node(name, *at[name], name in topology.switches) for name in topology.index]
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_SIZE} {_SIZE}" '
        f'font-family="sans-serif" font-size="11" role="img"><title>{escape(topology.name)}</title>'
    )
    return "\n".join([head, *lines, *nodes, "</svg>\n"])


def _places(topology: Topology) -> dict[str, tuple[float, float]]:
    places = {}
    for names, radius in (
        ([each.name for each in topology.members], _RADIUS),
        (topology.switches, _RADIUS / 2 if len(topology.switches) > 1 else 0),
    ):
        for number, name in enumerate(names):
            angle = 2 * pi * number / len(names) - pi / 2
            places[name] = _SIZE / 2 + radius * cos(angle), _SIZE / 2 + radius * sin(angle)
    return places


def _duplex(topology: Topology, source: str, target: str) -> bool:
    return bool(topology.capacity[topology.index[source], topology.index[target]])


def _shifted(at: tuple[float, float], shift: float) -> tuple[float, float]:
    return at[0] + shift, at[1] + shift


def _line(
    one: tuple[float, float], other: tuple[float, float], colour: str, width: float, title: str
) -> str:
    return (
        f'<line x1="{one[0]:.1f}" y1="{one[1]:.1f}" x2="{other[0]:.1f}" y2="{other[1]:.1f}" '
        f'stroke="{colour}" stroke-width="{width:.1f}"><title>{escape(title)}</title></line>'
    )


def _node(name: str, x: float, y: float, switch: bool) -> str:
    shape = (
        f'<rect x="{x - _NODE:.1f}" y="{y - 12:.1f}" width="{2 * _NODE}" height="24" fill="#fff" '
        'stroke="#566573"/>'
        if switch
        else f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{_NODE}" fill="#eaf2f8" stroke="#2471a3"/>'
    )
    return f'{shape}<text x="{x:.1f}" y="{y + 4:.1f}" text-anchor="middle">{escape(name)}</text>'

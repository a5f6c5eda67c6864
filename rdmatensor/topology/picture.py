# SPDX-License-Identifier: Apache-2.0
"""Draw a topology, and the trees of a packing in it, as SVG."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from math import cos, pi, sin, sqrt

from .. import units
from .._api.collective import Tree
from .model import Topology
from .pack import Packing

_SIZE, _RADIUS, _NODE, _ROW = 640, 260, 24, 20
# Of bandwidths in the legend, of which measured links have one each.
_WIDTHS = 4
_LINK = "#ccd1d1"
_COLOURS = ("#c0392b", "#2471a3", "#229954", "#b7950b", "#7d3c98", "#d35400", "#117a65", "#566573")


def svg(topology: Topology, packing: Packing | None = None) -> str:
    """Draw members in a circle, switches inside, and links as wide as their bandwidth.

    With a packing, each tree has a colour, and its edges lead from parent to child. A legend below says what
    shapes, widths and colours mean.
    """
    at = _places(topology)
    lines = []
    for link in topology.links:
        ends = topology.index[link.source], topology.index[link.target]
        if ends[0] > ends[1] and topology.capacity[ends[::-1]]:
            continue  # the other direction is drawn
        width = _width(topology, link.bandwidth)
        title = f"{link.source} - {link.target}: {units.size(link.bandwidth)}/s"
        lines.append(_line(at[link.source], at[link.target], _LINK, width, title))
    trees = packing.trees if packing else ()
    for number, tree in enumerate(trees):
        shift = 3 * (number - (len(trees) - 1) / 2)
        for node, parent in enumerate(tree.parents):
            if node != parent:
                one, other = (at[topology.members[each].name] for each in (parent, node))
                moved = (one[0] + shift, one[1] + shift), (other[0] + shift, other[1] + shift)
                lines.append(_line(*moved, *_style(number), _about(topology, number, tree)))
    legend = list(_legend(topology, trees))
    height = _SIZE + _ROW * (len(legend) + 1)
    nodes = [_node(name, *at[name], name in topology.switches) for name in topology.index]
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_SIZE} {height}" '
        f'font-family="sans-serif" font-size="11" role="img"><title>{escape(topology.name)}</title>'
    )
    return "\n".join([head, *lines, *nodes, *_rows(legend), "</svg>\n"])


def _style(number: int) -> tuple[str, float]:
    """Return the colour and width of a tree: where colours repeat, widths tell trees apart."""
    again, colour = divmod(number, len(_COLOURS))
    return _COLOURS[colour], 2 / (1 + again)


def _width(topology: Topology, bandwidth: float) -> float:
    return 1 + 5 * sqrt(bandwidth / max(link.bandwidth for link in topology.links))


def _about(topology: Topology, number: int, tree: Tree) -> str:
    root = topology.members[tree.root].name
    return f"tree {number + 1}, root {root}: {units.size(tree.rate)}/s"


def _legend(topology: Topology, trees: Sequence[Tree]) -> Iterator[tuple[str, str]]:
    """Yield each sign, drawn around the origin, and what it means."""
    yield '<circle r="7" fill="#eaf2f8" stroke="#2471a3"/>', "member of the group"
    if topology.switches:
        yield '<rect x="-12" y="-6" width="24" height="12" fill="#fff" stroke="#566573"/>', "switch"
    for bandwidth in sorted({link.bandwidth for link in topology.links}, reverse=True)[:_WIDTHS]:
        width = _width(topology, bandwidth)
        yield _line((-16, 0), (16, 0), _LINK, width, ""), f"link of {units.size(bandwidth)}/s"
    for number, tree in enumerate(trees):
        yield _line((-16, 0), (16, 0), *_style(number), ""), _about(topology, number, tree)


def _rows(legend: Sequence[tuple[str, str]]) -> Iterator[str]:
    for number, (sign, text) in enumerate(legend):
        at = f"translate({_ROW}, {_SIZE + _ROW * number})"
        yield f'<g transform="{at}">{sign}<text x="26" y="4">{escape(text)}</text></g>'


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

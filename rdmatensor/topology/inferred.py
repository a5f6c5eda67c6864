# SPDX-License-Identifier: Apache-2.0
"""Infer links and switches from what members measured alone and together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from .model import Link, Matrix, Member, Topology

Flow = tuple[int, int]  # from one member to another

ALIKE = 0.8  # of the rate alone: what is slower together shares a link


@dataclass(frozen=True)
class Figures:
    """Bytes per second from each member to each other one, in several situations, and seconds.

    `alone`: the pair has the network for itself. `sent` and `received`: what a member moves in all when it
    sends to all others, and when all send to it. `circles`: all members send at once, each to one other.
    `conflicts`: flows that slow each other down although they have no member in common.
    """

    alone: Matrix
    latency: Matrix
    sent: Matrix
    received: Matrix
    circles: Matrix
    conflicts: Sequence[tuple[Flow, Flow]] = ()


def infer(name: str, members: Sequence[Member], figures: Figures) -> Topology:
    """Return the simplest topology that explains the figures.

    A member whose pairs are slower together has a port, which is a switch. Members that slow each other down
    form an island with one uplink.
    """
    names = [each.name for each in members]
    size, alone = len(names), figures.alone
    shares = [
        size > 2
        and min(figures.sent[i] / alone[i].sum(), figures.received[i] / alone[:, i].sum()) < ALIKE
        for i in range(size)
    ]
    islands = _islands(figures)
    if all(shares) and len(set(islands)) == 1 and _is_star(figures):
        return Topology(name, tuple(members), tuple(_star(names, figures)), ("network",))
    links: list[Link] = []
    switches: list[str] = []
    ends = list(names)  # what other nodes are linked to
    for i in range(size):
        if shares[i]:
            ends[i] = f"port of {names[i]}"
            switches.append(ends[i])
            links += [
                Link(names[i], ends[i], figures.sent[i]),
                Link(ends[i], names[i], figures.received[i]),
            ]
    for i in range(size):
        for k in range(size):
            if i != k and islands[i] == islands[k]:
                links.append(Link(ends[i], ends[k], alone[i, k], figures.latency[i, k]))
    if len(set(islands)) > 1:
        core, found = _uplinks(ends, islands, figures)
        switches += core
        links += found
    return Topology(name, tuple(members), tuple(map(_rounded, links)), tuple(switches))


def _islands(figures: Figures) -> list[int]:
    """Return each member's island. The sources of conflicting flows are on one, and so are the targets."""
    size = len(figures.alone)
    if not figures.conflicts:
        return [0] * size
    islands = list(range(size))
    for one, other in figures.conflicts:
        for k, i in zip(one, other, strict=True):
            islands = [islands[k] if each == islands[i] else each for each in islands]
    # Where everything is in everything's way, the core is what they share.
    return islands if len(set(islands)) > 1 else list(range(size))


def _is_star(figures: Figures) -> bool:
    narrow = np.minimum.outer(figures.sent, figures.received)
    np.fill_diagonal(narrow, 0.0)
    return bool((figures.alone >= ALIKE * narrow).all())


def _star(names: list[str], figures: Figures) -> list[Link]:
    half = float(figures.latency[figures.latency > 0].min(initial=1.0)) / 2
    links = []
    for i, name in enumerate(names):
        links.append(Link(name, "network", figures.sent[i], half))
        links.append(Link("network", name, figures.received[i], half))
    return [_rounded(each) for each in links]


def _uplinks(ends: list[str], islands: list[int], figures: Figures) -> tuple[list[str], list[Link]]:
    """Return switches and links between islands. A member alone on its island is linked to the core."""
    switches, links = ["core"], []
    half = float(figures.latency[figures.latency > 0].min(initial=1.0)) / 2
    for island in sorted(set(islands)):
        inside = np.array([each == island for each in islands])
        numbers = np.flatnonzero(inside).tolist()
        up, down = (
            max(
                sum(
                    table[i, (i + step) % len(table)]
                    for i in numbers
                    if not inside[(i + step) % len(table)]
                )
                for step in range(1, len(table))
            )
            for table in (figures.circles, figures.circles.T)
        )
        gate = ends[numbers[0]]
        if len(numbers) > 1:
            gate = f"uplink of {ends[numbers[0]]}"
            switches.append(gate)
            for i in numbers:
                links.append(Link(ends[i], gate, figures.alone[i, ~inside].sum()))
                links.append(Link(gate, ends[i], figures.alone[~inside, i].sum()))
        links += [Link(gate, "core", up, half), Link("core", gate, down, half)]
    return switches, links


def _rounded(link: Link) -> Link:
    """Round to three digits: a measurement has no more."""
    return replace(
        link,
        bandwidth=float(f"{link.bandwidth:.3g}"),
        latency=float(f"{link.latency:.3g}"),
    )

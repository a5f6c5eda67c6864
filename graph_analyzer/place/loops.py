# SPDX-License-Identifier: Apache-2.0
"""Find the loops of a graph: which nodes are in them, and how often these run in a step.

A loop runs as often as its condition says. The condition is evaluated if it depends on constants, sizes and
counters only; of a condition such as `i < n and not done`, the part that is known bounds the count.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any

from ..read.graphs import reference
from ..read.ops import ENTER, EXIT, MERGE, NEXT_ITERATION, SWITCH
from ..read.shapes import Shapes
from .values import MAYBE, Value, Values

# The loops around a node, outermost first.
Frames = tuple[str, ...]
# A loop whose condition is still true after so many iterations counts as unknown.
_MOST = 20_000


def loop_frames(graph: Any) -> dict[str, Frames]:
    """Return the loops around each node that is inside one.

    An Enter belongs to the loop that it enters, an Exit to the loop that it leaves.
    """
    users = _users(graph)
    nodes = {node.name: node for node in graph.node}
    frames: dict[str, Frames] = {}
    stack: list[tuple[str, Frames]] = [
        (name, ()) for name, node in nodes.items() if node.op in ENTER
    ]
    while stack:
        name, outside = stack.pop()
        node = nodes[name]
        inside = _inside(node, outside)
        if len(inside) <= len(frames.get(name, ())) or len(inside) > len(nodes):
            continue
        frames[name] = inside
        outputs = after(node, inside)
        stack += [(user, outputs) for user in users.get(name, ()) if outputs]
    return frames


def after(node: Any, inside: Frames) -> Frames:
    """Return the loops around a node's outputs."""
    return inside[:-1] if node.op in EXIT else inside


def _inside(node: Any, outside: Frames) -> Frames:
    """Return the loops around a node whose inputs come from `outside`."""
    if node.op in ENTER:
        return (*outside, node.attr["frame_name"].s.decode(errors="replace"))
    return outside


def _users(graph: Any) -> dict[str, list[str]]:
    users: dict[str, list[str]] = {}
    for node in graph.node:
        for text in node.input:
            users.setdefault(reference(text)[0], []).append(node.name)
    return users


class Loops:
    """How often the nodes of a graph run in a step, and which of them wait for each other in a loop."""

    def __init__(
        self, graph: Any, frames: dict[str, Frames], shapes: Shapes, assumed: int | None = None
    ) -> None:
        """Take `assumed` as the number of iterations of loops whose condition does not tell."""
        self._nodes = {node.name: node for node in graph.node}
        self._frames, self._assumed = frames, assumed
        self._users = _users(graph)
        self._values = Values(self._nodes, shapes, self._left)
        self._merges: dict[Frames, list[str]] = {}
        self._conditions: dict[Frames, str] = {}
        for name, inside in frames.items():
            op = self._nodes[name].op
            if op == "LoopCond":
                self._conditions[inside] = name
            elif op in MERGE:
                self._merges.setdefault(inside, []).append(name)
        self._counts: dict[Frames, int | None] = {}
        self._finals: dict[Frames, dict[str, Value]] = {}
        self._bodies: dict[Frames, set[str]] = {}

    def runs(self, name: str) -> int | None:
        """Return how often the outputs of a node have a value in a step; None if that is not known."""
        inside = after(self._nodes[name], self._frames.get(name, ()))
        total = 1
        for depth in range(1, len(inside) + 1):
            count = self._count(inside[:depth])
            if count is None:
                return None
            # The condition is computed once more than the body.
            total *= count + (depth == len(inside) and name not in self._body(inside))
        return total

    def is_paced(self, producer: str, consumers: Iterable[str]) -> bool:
        """Return whether, in its loop, `producer` waits for what `consumers` made of its last output."""
        inside = self._frames.get(producer, ())
        return producer in self._reached(consumers, inside, around=True)

    def _count(self, inside: Frames) -> int | None:
        """Return the iterations of a loop each time it is entered."""
        if inside not in self._counts:
            self._counts[inside] = None  # what depends on itself is not known
            count, final = self._simulate(inside)
            self._counts[inside] = self._assumed if count is None else count
            self._finals[inside] = final
        return self._counts[inside]

    def _simulate(self, inside: Frames) -> tuple[int | None, dict[str, Value]]:
        condition = self._conditions.get(inside)
        if condition is None:
            return None, {}
        ends = {}
        for merge in self._merges.get(inside, ()):
            inputs = [reference(text) for text in self._nodes[merge].input if text[0] != "^"]
            back = [end for end in inputs if self._nodes[end[0]].op in NEXT_ITERATION]
            if len(inputs) == 2 and len(back) == 1:
                ends[merge] = next(end for end in inputs if end not in back), back[0]
        needed = self._values.needed((condition, 0), ends)
        current = {merge: self._values.of(ends[merge][0], {}) for merge in needed}
        for count in range(_MOST):
            going_on = self._values.of((condition, 0), current)
            if going_on is None:
                break
            if going_on is not MAYBE and not going_on:
                return count, current
            ahead = {merge: self._values.of(ends[merge][1], current) for merge in needed}
            if all(_same(ahead[merge], current[merge]) for merge in needed):
                break  # it goes on for ever, or until something happens that is not known
            current = ahead
        return None, {}

    def _left(self, name: str) -> Value:
        """Return the value with which a loop is left through an Exit."""
        inside = self._frames.get(name, ())
        switch = self._nodes[reference(self._nodes[name].input[0])[0]]
        if switch.op not in SWITCH or self._count(inside) is None:
            return None
        return self._finals[inside].get(reference(switch.input[0])[0])

    def _body(self, inside: Frames) -> set[str]:
        """Return the nodes that run only if the loop goes on."""
        if inside not in self._bodies:
            condition = self._conditions.get(inside)
            switches = [
                name
                for name in self._users.get(condition or "", ())
                if self._nodes[name].op in SWITCH
            ]
            self._bodies[inside] = {*switches} | self._reached(switches, inside, around=False)
        return self._bodies[inside]

    def _reached(self, starts: Iterable[str], inside: Frames, around: bool) -> set[str]:
        """Return what follows `starts` within a loop; `around`: in the next iterations, too."""
        queue, seen = deque(starts), set(starts)
        while queue:
            name = queue.popleft()
            if self._nodes[name].op in NEXT_ITERATION and not around:
                continue
            for user in self._users.get(name, ()):
                if user not in seen and self._frames.get(user, ())[: len(inside)] == inside:
                    seen.add(user)
                    queue.append(user)
        return seen


def _same(before: Value, now: Value) -> bool:
    if before is None or now is None or before is MAYBE or now is MAYBE:
        return before is now
    return bool(before.shape == now.shape and (before == now).all())

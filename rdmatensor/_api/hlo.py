# SPDX-License-Identifier: Apache-2.0
"""Which devices the collective operations of a program of XLA concern, of its text."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from ..errors import Unsupported

_OPERATION = re.compile(
    r" (?:all-gather|all-reduce|collective-broadcast|collective-permute|(?:ragged-)?all-to-all|"
    r"reduce-scatter)(?:-start)?\("
)
_COMPUTATION = re.compile(r"(ENTRY )?%?([^\s(]+) \(.*\{$")
_CALLED = re.compile(r"(\w+)=(?:\{(%[^}]*)\}|%([^\s,)}]+))")
_SIZES = re.compile(r"(?:num_partitions|replica_count)=(\d+)")
_BRANCHES = ("branch_computations", "true_computation", "false_computation")
_Groups = tuple[tuple[int, ...], ...]
# Three ways to write groups: lists; an array that is reshaped and transposed, with a group in each row; and
# axes of a mesh, whose parts are written as 'axis':(size of what is before)size.
_IOTA = r"\[(?P<reshape>[\d,]+)\](?:T\((?P<transpose>[\d,]+)\))?"
_LISTS = re.compile(r"replica_groups=\{([\d,{}]*)\}")
_ROWS = re.compile(rf"replica_groups=\[(?P<shape>[\d,]+)\]<={_IOTA}")
_MESH = re.compile(
    rf"replica_groups=mesh\[(?P<mesh>[^\]]*)\](?:, device_ids=\({_IOTA}\))? \{{(?P<axes>[^}}]*)\}}"
)
_AXIS = re.compile(r"'([^']+)'(?::\((\d+)\)(\d+))?")


class Partition(NamedTuple):
    """How an operation divides the devices of a program, which are numbered from 0."""

    groups: _Groups
    sure: bool
    """Whether the operation runs whenever the program does: it is in no branch."""


def partitions(text: str) -> Sequence[Partition]:
    """Return the partitions of a compiled program's operations, in the order in which they run first.

    Raises Unsupported if one is written in another way than XLA writes it today.
    """
    if not _OPERATION.search(text):
        return ()
    count = int(np.prod([int(each) for each in _SIZES.findall(text.partition("\n")[0])], initial=1))
    lines, entry = _computations(text)

    @cache
    def run(name: str) -> Sequence[Partition]:
        found: dict[_Groups, bool] = {}
        for line in lines.get(name, ()):
            if _OPERATION.search(line):
                found[_groups(line, count)] = True
                continue
            for kind, several, one in _CALLED.findall(line):
                branch = kind in _BRANCHES
                for called in (several or one).split(","):
                    for groups, sure in run(called.strip(" %")):
                        found[groups] = found.get(groups, False) or (sure and not branch)
        return tuple(Partition(*each) for each in found.items())

    return run(entry)


def _computations(text: str) -> tuple[dict[str, list[str]], str]:
    """Return the lines of each computation, and the name of the first one that runs."""
    lines: dict[str, list[str]] = {}
    name = entry = ""
    for line in text.splitlines():
        found = None if line.startswith(" ") else _COMPUTATION.match(line)
        if found:
            name = found[2]
            entry = name if found[1] else entry
            lines[name] = []
        elif name:
            lines[name].append(line.partition(", metadata=")[0])
    return lines, entry


def _groups(line: str, count: int) -> _Groups:
    if "replica_groups=" not in line or "replica_groups={}" in line:
        return (tuple(range(count)),)
    if found := _LISTS.search(line):
        lists = re.findall(r"\{([\d,]+)\}", found[1])
        return tuple(tuple(map(int, each.split(","))) for each in lists)
    if found := _ROWS.search(line):
        rows = _array(found, count).reshape(_numbers(found["shape"])[0], -1)
    elif found := _MESH.search(line):
        rows = _over_axes(found, count)
    else:
        raise Unsupported(
            f"rdmatensor does not know how XLA writes devices here: {line.strip()}", "UNSUPPORTED"
        )
    return tuple(tuple(map(int, row)) for row in rows)


def _numbers(text: str | None) -> list[int]:
    return [int(each) for each in (text or "").split(",") if each]


def _array(found: re.Match[str], count: int) -> Any:
    reshape, transpose = _numbers(found["reshape"]), _numbers(found["transpose"])
    numbers = np.arange(count).reshape(reshape or count)
    return numbers.transpose(transpose) if transpose else numbers


def _over_axes(found: re.Match[str], count: int) -> Any:
    """Return an array with a group in each row."""
    sizes = {name: int(size) for name, size in re.findall(r"'([^']+)'=(\d+)", found["mesh"])}
    chosen = [
        (name, int(before or 1), int(size or 0))
        for name, before, size in _AXIS.findall(found["axes"])
    ]
    shape: list[int] = []
    places: dict[tuple[str, int], int] = {}
    for name, whole in sizes.items():
        at = 1
        for _, before, size in sorted(each for each in chosen if each[0] == name):
            shape.append(before // at)
            places[name, before] = len(shape)
            shape.append(size or whole)
            at = before * (size or whole)
        shape.append(whole // at)
    last = [places[name, before] for name, before, _ in chosen]
    others = [each for each in range(len(shape)) if each not in last]
    numbers = _array(found, count).reshape(shape).transpose(others + last)
    return numbers.reshape(-1, int(np.prod([shape[each] for each in last])))

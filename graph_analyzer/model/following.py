# SPDX-License-Identifier: Apache-2.0
"""What a plan becomes if one follows advice: variables on other tasks, or rows instead of tables.

The plans that are made here have no places; they are there to be compared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from .plan import Edge, TransferPlan


def moved(plan: TransferPlan, homes: Mapping[str, str]) -> TransferPlan:
    """Return the plan with each variable in `homes` on the task that it names there.

    What is read of the variable, and what changes it, moves with it.
    """
    old = {variable.name: variable.task for variable in plan.held}
    new = {**old, **homes}
    found: dict[tuple[str, str, str], Edge] = {}
    for edge in plan.edges:
        source = edge.source
        if edge.variable in homes and source == old.get(edge.variable):
            source = homes[edge.variable]
        changed = [name for name in edge.updates if old.get(name) == edge.destination]
        for destination in dict.fromkeys(new[name] for name in changed) or [edge.destination]:
            if source != destination:
                there = _at(edge, source, destination)
                found[there.key] = there
    return _with(plan, list(found.values()), homes)


def dealt_by_bytes(plan: TransferPlan, tasks: Sequence[str]) -> TransferPlan:
    """Return the plan with the variables of a job dealt out by PlacedOn(spread="bytes") over `tasks`."""
    held = dict.fromkeys(tasks, 0)
    homes = {}
    for variable in plan.held:
        if variable.task in held:
            task = min(tasks, key=lambda name: held[name])
            held[task] += variable.bytes
            homes[variable.name] = task
    return moved(plan, homes)


def split(plan: TransferPlan, variable: str, tasks: Sequence[str]) -> TransferPlan:
    """Return the plan with `variable` in equal parts on `tasks`."""
    found = []
    for edge in plan.edges:
        if variable != edge.variable and variable not in edge.updates:
            found.append(edge)
            continue
        for task in tasks:
            ends = (task, edge.destination) if variable == edge.variable else (edge.source, task)
            if ends[0] != ends[1]:
                part = _at(edge, *ends)
                found.append(replace(part, bytes=-(-edge.bytes // len(tasks))))
    return _with(plan, found, dict.fromkeys([variable], tasks[0]))


def rows_at_source(plan: TransferPlan, variable: str) -> TransferPlan:
    """Return the plan with the rows of `variable` looked up where it is."""
    edges = [
        replace(edge, bytes=edge.rows)
        if edge.variable == variable and edge.rows is not None
        else edge
        for edge in plan.edges
    ]
    return _with(plan, edges, {})


def _at(edge: Edge, source: str, destination: str) -> Edge:
    return replace(
        edge, source=source, destination=destination, ring=None, offset=None, stride=None
    )


def _with(plan: TransferPlan, edges: list[Edge], homes: Mapping[str, str]) -> TransferPlan:
    tasks = {*plan.tasks, *homes.values(), *(edge.source for edge in edges)}
    tasks |= {edge.destination for edge in edges}
    variables = tuple(
        replace(variable, task=homes.get(variable.name, variable.task)) for variable in plan.held
    )
    return replace(
        plan,
        tasks=tuple(sorted(tasks)),
        links=(),
        edges=tuple(sorted(edges, key=lambda edge: edge.key)),
        variables=variables,
    )

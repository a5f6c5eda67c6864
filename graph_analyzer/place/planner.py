# SPDX-License-Identifier: Apache-2.0
"""Plan transfers with the planner that servers use (rdmatensor.plan)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from rdmatensor import config
from rdmatensor import plan as core
from rdmatensor.plan import Options

from ..model.errors import AnalysisError
from ..model.plan import ADDED, Edge, Link, TransferPlan, Variable
from ..read.devices import Device, whole
from .edges import Node, Transfer, Transfers


def settings() -> Options:
    """Return the options that a server of this process would use."""
    return Options(
        slots=config.get_int("PLAN_SLOTS"),
        loop_slots=2 * config.get_int("PLAN_SLOTS"),
        batch=config.get_int("BATCH_SIZE"),
        fuse_bytes=config.get_int("FUSE_BYTES"),
    )


def plan(
    transfers: Transfers, options: Options, budgets: Mapping[str, int] | None = None
) -> TransferPlan:
    """Plan `transfers`. `budgets` limits bytes by task; tasks that it leaves out have no limit."""
    items = [item for item in transfers.items if not item.added]
    rows = _rows(transfers, items)
    limits = _budgets(transfers.tasks, budgets)
    made = core.make(rows, len(transfers.tasks), replace(options, budgets=limits))
    index = {(link.source, link.destination): n for n, link in enumerate(made.links)}
    fusions = core.fuse(_between_devices(items, rows), options)
    edges = [_added(transfers, item) for item in transfers.items if item.added]
    for item, row, place, fusion in zip(items, rows, made.places, fusions, strict=True):
        ring = None
        if place.ring is not None:
            ring = made.rings[index[item.source, item.destination]][place.ring]
        edges.append(_edge(transfers, item, row.order, place, ring, fusion))
    return TransferPlan(
        tasks=transfers.tasks,
        options=replace(options, budgets=None),
        links=tuple(_link(transfers.tasks, link) for link in made.links),
        edges=tuple(sorted(edges, key=lambda edge: edge.key)),
        control_edges=transfers.control_edges,
        variables=tuple(
            Variable(name, transfers.tasks[task], nbytes)
            for name, task, nbytes in transfers.variables
        ),
    )


def _flags(node: Node) -> int:
    return (
        core.NodeFlag.LOOP * node.loop
        | core.NodeFlag.BLOCKS * node.blocks
        | core.NodeFlag.FREE * node.free
        | core.NodeFlag.ANY * node.merges
        | core.NodeFlag.BRANCH * node.branches
    )


def _rows(transfers: Transfers, items: list[Transfer]) -> list[core.Edge]:
    orders = core.find_order(
        [core.Node(node.task, _flags(node)) for node in transfers.nodes],
        [core.Arc(*arc) for arc in transfers.arcs],
        [core.Use(item.producer, item.consumers) for item in items],
    )
    return [
        core.Edge(
            name=item.name,
            source=item.source,
            destination=item.destination,
            dtype=item.dtype_number,
            element_size=item.element_size,
            shape=item.shape,
            flags=core.EdgeFlag.LOOP * item.in_loop
            | core.EdgeFlag.DEVICE_MEMORY * item.device_memory,
            order=order,
        )
        for item, order in zip(items, orders, strict=True)
    ]


def _between_devices(items: list[Transfer], rows: list[core.Edge]) -> list[core.Edge]:
    """Return the rows with devices instead of tasks, because each device has operations of its own."""
    ends = [((item.source, item.devices[0]), (item.destination, item.devices[1])) for item in items]
    numbers = {device: n for n, device in enumerate(sorted({end for pair in ends for end in pair}))}
    return [
        row._replace(source=numbers[source], destination=numbers[destination])
        for row, (source, destination) in zip(rows, ends, strict=True)
    ]


_UNLIMITED = 2**64 - 1


def _budgets(tasks: tuple[str, ...], budgets: Mapping[str, int] | None) -> list[int] | None:
    if budgets is None:
        return None
    named = {whole(name, Device()).task_name: limit for name, limit in budgets.items()}
    for name, limit in named.items():
        if name not in tasks:
            raise AnalysisError(f"budget of {name}: not found; available: {', '.join(tasks)}")
        if limit < 0:
            raise AnalysisError(f"the budget of {name} must be at least 0 bytes, got {limit}")
    return [named.get(task, _UNLIMITED) for task in tasks]


def _reason(item: Transfer, reason: core.Reason) -> str:
    """Return the planner's reason, with the node from which an unknown shape comes."""
    unknown = {core.Reason.RANK, core.Reason.DIMENSION, core.Reason.BATCH}
    if reason not in unknown:
        return str(reason)
    if item.shape is None:
        return f"rank unknown: {item.origin}"
    dims = [str(number) for number, size in enumerate(item.shape) if size is None]
    return f"dim{'s' * (len(dims) > 1)} {', '.join(dims)} unknown: {item.origin}"


def _edge(
    transfers: Transfers,
    item: Transfer,
    order: core.Order,
    place: core.Placement,
    ring: core.Ring | None,
    fusion: core.Fusion,
) -> Edge:
    return Edge(
        name=item.name,
        source=transfers.tasks[item.source],
        destination=transfers.tasks[item.destination],
        dtype=item.dtype,
        shape=item.shape,
        in_loop=item.in_loop,
        iterations=item.iterations,
        paced=item.paced,
        updates=item.updates,
        rows=item.rows,
        plan_class=str(place.plan_class),
        reason=_reason(item, place.reason),
        bytes=place.bytes,
        slots=ring.slots if ring else 0,
        ring=place.ring,
        group=place.group,
        offset=ring.offset + place.offset if ring else None,
        stride=ring.stride if ring else None,
        first=order.first,
        last=order.last,
        operation=fusion.operation,
        alone=str(fusion.alone),
        consumers=tuple(sorted(transfers.node_names[node] for node in item.consumers)),
        variable=item.variable,
    )


def _added(transfers: Transfers, item: Transfer) -> Edge:
    """Return the edge of a tensor that no server plans."""
    place = core.Placement(
        core.PlanClass.DYNAMIC, core.Reason.NONE, item.element_size, None, None, 0
    )
    alone = core.Fusion(None, core.Alone.NOT)
    edge = _edge(transfers, item, core.Order(), place, None, alone)
    return replace(edge, reason=ADDED, alone=ADDED)


def _link(tasks: tuple[str, ...], link: core.Link) -> Link:
    return Link(
        source=tasks[link.source],
        destination=tasks[link.destination],
        bytes=link.bytes,
        rings=link.ring_count,
        groups=link.group_count,
        hash=f"{link.hash:016x}",
    )

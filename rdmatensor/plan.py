# SPDX-License-Identifier: Apache-2.0
"""Plan, before the first step, where every tensor of a placed dataflow graph will lie.

    orders = find_order(nodes, arcs, uses)          # what the graph proves, one Order a tensor
    plan = make(edges, task_count, Options(batch=64))
    plan.places[i]                                  # how edges[i] travels, and where it lies
    fuse(edges)[i]                                  # the operation that sends it together with others

This is the planner of the C library, which TensorFlow servers use (csrc/include/rdmatensor/plan.h). It is
pure and deterministic, and needs no device and no connection. It raises UsageError for invalid arguments and
DeviceError if memory runs out.

Records are named tuples. Plain tuples of all their values are accepted too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import IntEnum, IntFlag
from itertools import accumulate
from typing import Any, NamedTuple

from ._ffi import ffi, lib
from .errors import UsageError, _text, check

_NEVER = 2**31 - 1


class PlanClass(IntEnum):
    """How a tensor travels. str() is its name in plans and tables, such as "static"."""

    STATIC = lib.RDT_PLAN_STATIC
    BOUNDED = lib.RDT_PLAN_BOUNDED
    DYNAMIC = lib.RDT_PLAN_DYNAMIC
    RPC = lib.RDT_PLAN_RPC

    def __str__(self) -> str:
        return _text(lib.rdt_plan_class_name(self.value))


class Reason(IntEnum):
    """Why a tensor is not static. str() is a clause, empty for NONE."""

    NONE = lib.RDT_PLAN_BECAUSE_NONE
    TYPE = lib.RDT_PLAN_BECAUSE_TYPE
    RANK = lib.RDT_PLAN_BECAUSE_RANK
    DIMENSION = lib.RDT_PLAN_BECAUSE_DIMENSION
    BATCH = lib.RDT_PLAN_BECAUSE_BATCH
    BUDGET = lib.RDT_PLAN_BECAUSE_BUDGET
    SIZE = lib.RDT_PLAN_BECAUSE_SIZE

    def __str__(self) -> str:
        return _text(lib.rdt_plan_reason_text(self.value))


class Alone(IntEnum):
    """Why a tensor is sent and received by operations of its own. str() is a clause, empty for NOT."""

    NOT = lib.RDT_PLAN_ALONE_NOT
    OFF = lib.RDT_PLAN_ALONE_OFF
    SIZE = lib.RDT_PLAN_ALONE_SIZE
    LOOP = lib.RDT_PLAN_ALONE_LOOP
    BRANCH = lib.RDT_PLAN_ALONE_BRANCH
    WAITS = lib.RDT_PLAN_ALONE_WAITS
    LAST = lib.RDT_PLAN_ALONE_LAST
    DEVICE = lib.RDT_PLAN_ALONE_DEVICE

    def __str__(self) -> str:
        return _text(lib.rdt_plan_alone_text(self.value))


class NodeFlag(IntFlag):
    """What the planner has to know about a node."""

    LOOP = lib.RDT_NODE_LOOP  # runs more than once in a step
    BLOCKS = lib.RDT_NODE_BLOCKS  # may wait for something that is not its input
    FREE = lib.RDT_NODE_FREE  # takes no time
    ANY = lib.RDT_NODE_ANY  # runs as soon as one of its inputs is there
    BRANCH = lib.RDT_NODE_BRANCH  # may leave what follows it without a value


class EdgeFlag(IntFlag):
    """What the planner has to know about an edge."""

    LOOP = lib.RDT_EDGE_LOOP  # sent more than once in a step
    DEVICE_MEMORY = lib.RDT_EDGE_DEVICE_MEMORY  # leaves or enters memory other than the host's


class Node(NamedTuple):
    """A node of the placed graph of all tasks. Arcs and uses refer to it by its position."""

    task: int
    flags: int = 0


class Arc(NamedTuple):
    """`target` runs after `source`, because of data or control. Leave out arcs that close loops."""

    source: int
    target: int


class Use(NamedTuple):
    """A tensor that travels from the node that makes it to nodes of another task that use it."""

    producer: int
    consumers: Sequence[int]


class Order(NamedTuple):
    """What the graph proves about a tensor, compared with others of the same link.

    Tensors with the same `ready` become ready together, and none of them needs the arrival of another. A
    tensor whose `first` is greater than this one's `last` is made only after all consumers of this one have
    run. None means that nothing is known. `may_die` says that it may have no value, because it comes after a
    branch.
    """

    ready: int | None = None
    first: int = 0
    last: int | None = None
    may_die: bool = False


class Edge(NamedTuple):
    """A tensor that travels from task `source` to task `destination`.

    `name` is unique in its link. `dtype` is only compared. `element_size` is 0 if elements are not plain
    bytes. In `shape`, None is an unknown dimension; a `shape` of None is an unknown rank.
    """

    name: str
    source: int
    destination: int
    dtype: int
    element_size: int
    shape: Sequence[int | None] | None
    flags: int = 0
    order: Order = Order()


@dataclass(frozen=True)
class Options:
    """The planner's settings, with the defaults of rdmatensor.config. Sizes are in bytes.

    `slots` is the number of places of a tensor, `loop_slots` that of a tensor inside a loop. `batch` bounds
    an unknown first dimension (0: no bound). `fuse_bytes` is the largest tensor that travels in a group
    (0: no groups), `fuse_group_bytes` the largest group. `budgets` limits the memory for places of each task.
    """

    slots: int = 2
    loop_slots: int = 4
    batch: int = 0
    fuse_bytes: int = 4096
    fuse_group_bytes: int = 65536
    budgets: Sequence[int] | None = None


class Placement(NamedTuple):
    """How an edge travels, and where it lies.

    `bytes` is its size or bound, 0 if unknown. `ring` and `group` are numbers in its link, or None. `offset`
    counts from the start of a slot.
    """

    plan_class: PlanClass
    reason: Reason
    bytes: int
    ring: int | None
    group: int | None
    offset: int


class Ring(NamedTuple):
    """The `slots` slots, of `stride` bytes each, that begin at `offset` of a link's memory.

    `members` is the number of edges that use them.
    """

    offset: int
    stride: int
    slots: int
    members: int


class Link(NamedTuple):
    """What travels from one task to another.

    `bytes` is the memory that the destination registers. `hash` is equal at both ends if their plans are
    equal.
    """

    source: int
    destination: int
    bytes: int
    ring_count: int
    group_count: int
    hash: int


class Fusion(NamedTuple):
    """How an edge is sent: by the operation number `operation`, together with others.

    If `operation` is None, it has an operation of its own, and `alone` says why.
    """

    operation: int | None
    alone: Alone


@dataclass(frozen=True)
class Plan:
    """A plan: `places` in the order of the edges, `links` by source and destination, `rings` by link."""

    places: list[Placement]
    links: list[Link]
    rings: list[list[Ring]]


def find_order(nodes: Iterable[Node], arcs: Iterable[Arc], uses: Iterable[Use]) -> list[Order]:
    """Find what the graph proves about the order of `uses`. Nodes in cycles count as loops."""
    kept: list[Any] = []
    with _usage():
        node_array = ffi.new("rdt_plan_node[]", list(nodes))
        arc_array = ffi.new("rdt_plan_arc[]", list(arcs))
        use_array = _uses(list(uses), kept)
    orders = ffi.new("rdt_plan_order[]", len(use_array))
    check(
        lib.rdt_plan_find_order(
            *(node_array, len(node_array), arc_array, len(arc_array)),
            *(use_array, len(use_array), orders),
        )
    )
    flat = memoryview(ffi.buffer(orders)).cast("i")
    return [
        Order(None if ready < 0 else ready, first, None if last == _NEVER else last, bool(dies))
        for ready, first, last, dies in zip(*(flat[n::4] for n in range(4)), strict=True)
    ]


def make(edges: Iterable[Edge], task_count: int, options: Options | None = None) -> Plan:
    """Plan `edges` between tasks 0 to `task_count` - 1."""
    kept: list[Any] = []
    out = ffi.new("rdt_plan **")
    with _usage():
        edge_array = _edges(list(edges), kept)
        chosen = _options(options or Options(), task_count, kept)
        status = lib.rdt_plan_make(edge_array, len(edge_array), task_count, chosen, out)
    check(status)
    plan = ffi.gc(out[0], lib.rdt_plan_free)
    links = list(_links(plan))
    rings = [list(_rings(plan, index, link)) for index, link in enumerate(links)]
    return Plan(list(_places(plan, len(edge_array))), links, rings)


def fuse(edges: Iterable[Edge], options: Options | None = None) -> list[Fusion]:
    """Decide which edges share operations. `source` and `destination` are devices here, in any numbering."""
    kept: list[Any] = []
    rows = list(edges)
    fusions = ffi.new("rdt_plan_fusion[]", len(rows))
    with _usage():
        chosen = _options(replace(options or Options(), budgets=None), 0, kept)
        status = lib.rdt_plan_fuse(_edges(rows, kept), len(rows), chosen, fusions)
    check(status)
    return [
        Fusion(None if each.operation < 0 else each.operation, Alone(each.alone))
        for each in fusions
    ]


def edge_hash(edge: Edge) -> int:
    """Return a hash of an edge's name, dtype, shape and loop flag, but not of its place."""
    kept: list[Any] = []
    with _usage():
        return int(lib.rdt_plan_edge_hash(_edges([edge], kept)))


# Into C, whole arrays at once. `kept` keeps alive what they point to.


@contextmanager
def _usage() -> Iterator[None]:
    """Turn the errors of Python and cffi about values that C cannot take into UsageError."""
    try:
        yield
    except UsageError:
        raise
    except (AttributeError, IndexError, OverflowError, TypeError, ValueError) as error:
        raise UsageError(f"the planner's arguments: {error}") from None


def _starts(lengths: Iterable[int]) -> Iterator[int]:
    return accumulate(lengths, initial=0)


def _uses(uses: list[Use], kept: list[Any]) -> Any:
    consumers = ffi.new("uint32_t[]", [node for _, nodes in uses for node in nodes])
    kept.append(consumers)
    rows = [
        (producer, consumers + start, len(nodes))
        for (producer, nodes), start in zip(
            uses, _starts(len(nodes) for _, nodes in uses), strict=False
        )
    ]
    return ffi.new("rdt_plan_use[]", rows)


def _names(names: Iterable[str], kept: list[Any]) -> Iterator[Any]:
    encoded = [name.encode() for name in names]
    if any(b"\0" in name for name in encoded):
        raise UsageError("the name of an edge contains a zero byte")
    text = ffi.new("char[]", b"\0".join(encoded))
    kept.append(text)
    return (text + start for start in _starts(len(name) + 1 for name in encoded))


def _dims(shapes: Iterable[Sequence[int | None] | None], kept: list[Any]) -> Iterator[Any]:
    known = [shape or () for shape in shapes]
    flat = [-1 if dim is None else dim for shape in known for dim in shape]
    dims = ffi.new("int64_t[]", flat)
    kept.append(dims)
    return (dims + start for start in _starts(map(len, known)))


def _order(order: Order) -> tuple[int, int, int, int]:
    ready, first, last, dies = Order(*order)
    return (-1 if ready is None else ready, first, _NEVER if last is None else last, dies)


def _edges(edges: list[Edge], kept: list[Any]) -> Any:
    names = _names([edge[0] for edge in edges], kept)
    dims = _dims([edge[5] for edge in edges], kept)
    rows = [
        (
            *(name, source, destination, dtype, element_size),
            *(-1 if shape is None else len(shape), flags, dim, _order(order)),
        )
        for (_, source, destination, dtype, element_size, shape, flags, order), name, dim in zip(
            edges, names, dims, strict=False
        )
    ]
    return ffi.new("rdt_plan_edge[]", rows)


def _options(options: Options, task_count: int, kept: list[Any]) -> Any:
    budgets = ffi.NULL
    if options.budgets is not None:
        if len(options.budgets) != task_count:
            raise UsageError(
                f"{len(options.budgets)} budgets for {task_count} tasks: give one for each"
            )
        budgets = ffi.new("uint64_t[]", list(options.budgets))
        kept.append(budgets)
    fields = (ffi.sizeof("rdt_plan_options"), options.slots, options.loop_slots, options.batch)
    row = (*fields, options.fuse_bytes, options.fuse_group_bytes, budgets)
    return ffi.new("rdt_plan_options *", row)


_CLASSES = list(PlanClass)
_REASONS = list(Reason)


def _places(plan: Any, count: int) -> Iterator[Placement]:
    place = ffi.new("rdt_plan_place *")
    for index in range(count):
        check(lib.rdt_plan_get_place(plan, index, place))
        yield Placement(
            _CLASSES[place.plan_class],
            _REASONS[place.reason],
            place.bytes,
            None if place.ring < 0 else place.ring,
            None if place.group < 0 else place.group,
            place.offset,
        )


def _links(plan: Any) -> Iterator[Link]:
    link = ffi.new("rdt_plan_link *")
    for index in range(lib.rdt_plan_link_count(plan)):
        check(lib.rdt_plan_get_link(plan, index, link))
        yield Link(
            *(link.source, link.destination, link.bytes),
            *(link.ring_count, link.group_count, link.hash),
        )


def _rings(plan: Any, index: int, link: Link) -> Iterator[Ring]:
    ring = ffi.new("rdt_plan_ring *")
    for number in range(link.ring_count):
        check(lib.rdt_plan_get_ring(plan, index, number, ring))
        yield Ring(ring.offset, ring.stride, ring.slots, ring.members)

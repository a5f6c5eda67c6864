# SPDX-License-Identifier: Apache-2.0
"""Operations on rows of variables, at one server: row_operations.py PROTOCOL THREADS [OPERATION].

Prints, as JSON, for each case what it left in the variables and returned, as a digest, or how it failed; and
over grpc+rdma how many operations the plugin's kernels did, and how many they left to TensorFlow's. With
stock gRPC and one thread this is what TensorFlow's kernels do in the order of the ids.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
import numpy as np
import tensorflow as tf

import rdmatensor.tensorflow
from support.ports import free_ports

ROWS = 500
NONE, FEW, MANY = 0, 40, 3000
raw, v1 = tf.raw_ops, tf.compat.v1


@dataclass(frozen=True)
class Operation:
    """An operation: how many slots it has, its numbers by name, and its attributes."""

    name: str
    slots: Sequence[str] = ()
    numbers: Mapping[str, float] = field(default_factory=dict)
    attributes: Mapping[str, bool] = field(default_factory=dict)

    @property
    def updates(self) -> bool:
        """Whether this is an optimizer's."""
        return "SparseApply" in self.name

    @property
    def changes(self) -> bool:
        """Whether its last input has a value for each row."""
        return self.updates or "Scatter" in self.name

    @property
    def title(self) -> str:
        """The name, with the attributes that are on."""
        return " ".join([self.name, *(key for key, on in self.attributes.items() if on)])


def _both(operation: Operation, attribute: str) -> list[Operation]:
    return [replace(operation, attributes={attribute: on}) for on in (False, True)]


_MOMENTUM = {"lr": 0.1, "momentum": 0.9}
_FTRL = {"lr": 0.1, "l1": 0.3, "l2": 0.2, "lr_power": -0.5}
OPERATIONS = [
    Operation("ResourceGather"),
    *(Operation(f"ResourceScatter{kind}") for kind in ("Add", "Sub", "Update")),
    *_both(Operation("ResourceSparseApplyAdagrad", ["accum"], {"lr": 0.1}), "update_slots"),
    *_both(
        Operation("ResourceSparseApplyAdagradV2", ["accum"], {"lr": 0.1, "epsilon": 1e-7}),
        "update_slots",
    ),
    *_both(Operation("ResourceSparseApplyMomentum", ["accum"], _MOMENTUM), "use_nesterov"),
    *_both(Operation("ResourceSparseApplyKerasMomentum", ["accum"], _MOMENTUM), "use_nesterov"),
    Operation(
        "ResourceSparseApplyRMSProp",
        ["ms", "mom"],
        {"lr": 0.1, "rho": 0.9, "momentum": 0.8, "epsilon": 1e-7},
        {"use_locking": True},
    ),
    Operation("ResourceSparseApplyFtrl", ["accum", "linear"], _FTRL, {"use_locking": True}),
    *_both(
        Operation("ResourceSparseApplyFtrlV2", ["accum", "linear"], _FTRL | {"l2_shrinkage": 0.1}),
        "multiply_linear_by_lr",
    ),
    Operation("UnsortedSegmentSum"),
]


class Bench:
    """One operation in a graph of its own, whose tables and inputs are fed."""

    def __init__(self, target: str, operation: Operation, ids: Any) -> None:
        self.operation, graph = operation, tf.Graph()
        with graph.as_default():
            self._new = {
                name: v1.placeholder(tf.float32, None) for name in ("var", *operation.slots)
            }
            handles = {
                name: raw.VarHandleOp(
                    dtype=tf.float32, shape=None, shared_name=f"{operation.title} {ids} {name}"
                )
                for name in self._new
            }
            self._assign = [
                raw.AssignVariableOp(resource=handles[name], value=new)
                for name, new in self._new.items()
            ]
            self.ids = v1.placeholder(ids, None)
            self.values = v1.placeholder(tf.float32, None)
            self.count = v1.placeholder(tf.int32, None)
            self._numbers = {name: v1.placeholder(tf.float32, None) for name in operation.numbers}
            resource = handles["var"]
            # TensorFlow's kernel makes a variable one of rows, in either case.
            self._touch = [
                raw.ResourceGather(
                    resource=handle, indices=tf.constant(0, tf.int64), dtype=tf.float32
                )
                for handle in handles.values()
            ]
            self._read = [
                raw.ReadVariableOp(resource=handle, dtype=tf.float32) for handle in handles.values()
            ]
            if operation.updates:
                make = getattr(raw, operation.name)
                inputs = {**handles, **self._numbers, "grad": self.values, "indices": self.ids}
                self._run = make(**inputs, **operation.attributes)
            elif operation.changes:
                make = getattr(raw, operation.name)
                self._run = make(resource=resource, indices=self.ids, updates=self.values)
            elif operation.name == "ResourceGather":
                self._run = raw.ResourceGather(
                    resource=resource, indices=self.ids, dtype=tf.float32
                )
            else:
                self._run = raw.UnsortedSegmentSum(
                    data=self.values, segment_ids=self.ids, num_segments=self.count
                )
        self._session = v1.Session(target, graph=graph)

    def assign(self, **tables: Any) -> None:
        """Set the tables, and make them such that single rows may be changed."""
        feeds = {self._new[name]: table for name, table in tables.items()}
        self._session.run(self._assign, feeds)
        self._session.run(self._touch)

    def run(self, ids: Any, values: Any, count: Any = ROWS, **numbers: float) -> Any:
        """What the operation returns; `count` is how many sums there are."""
        given = {**self.operation.numbers, **numbers}
        feeds = {self._numbers[name]: number for name, number in given.items()}
        return self._session.run(
            self._run, feeds | {self.ids: ids, self.values: values, self.count: count}
        )

    def read(self) -> list[Any]:
        """The tables."""
        return list(self._session.run(self._read))

    def close(self) -> None:
        """Forget the graph."""
        self._session.close()


def digest(arrays: Sequence[Any]) -> str:
    """Equal for equal bits; all NaNs are equal."""
    found = hashlib.sha256()
    for array in arrays:
        if array is not None:
            whole = np.array(array)
            whole[np.isnan(whole)] = np.nan
            found.update(str(whole.shape).encode() + whole.tobytes())
    return found.hexdigest()


def _failure(error: tf.errors.OpError) -> list[str]:
    """The kind of an error, and what the operation said: not where the program is, nor what ended with it."""
    _, _, said = error.message.partition("/task:0:\n")
    return [type(error).__name__, said.partition("\n")[0]]


def _rows_done() -> tuple[int, int]:
    rows = rdmatensor.tensorflow.stats()["rows"]
    return rows["operations"], rows["left"]


def noted(make: Callable[[], Sequence[Any]]) -> dict[str, Any]:
    """How it ends, and how many operations the plugin's kernels did and left meanwhile."""
    before = _rows_done()
    try:
        said: Any = digest(make())
    except tf.errors.OpError as error:
        said = _failure(error)
    done = [now - then for now, then in zip(_rows_done(), before, strict=True)]
    return {"said": said, "done": done}


def _random(seed: int, *shape: int) -> Any:
    numbers = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
    # Zeros of both signs, the least number, and one that is too small to be normal.
    special = np.array([-0.0, 0.0, np.finfo(np.float32).tiny, 1e-40], np.float32)
    places = np.arange(0, numbers.size, max(1, numbers.size // 16))
    numbers.flat[places] = np.resize(special, len(places))
    return numbers


class Cases:
    """The cases of one operation and one type of ids."""

    def __init__(self, bench: Bench, ids: Any) -> None:
        self._bench, self._type = bench, ids.as_numpy_dtype
        self.found: dict[str, Any] = {}

    def _tables(self, *shape: int) -> dict[str, Any]:
        slots = {
            slot: np.abs(_random(2 + number, *shape))
            for number, slot in enumerate(self._bench.operation.slots)
        }
        return {"var": _random(1, *shape), **slots}

    def case(
        self, name: str, ids: Any, shape: Sequence[int], values: Any = None, **numbers: Any
    ) -> None:
        """Run the operation with these ids on tables of that shape."""
        ids = np.asarray(ids).astype(self._type)
        if values is None:
            values = _random(9, *ids.shape, *shape[1:])
        self._bench.assign(**self._tables(*shape))

        def run() -> list[Any]:
            returned = self._bench.run(ids, values, **numbers)
            return [returned, *self._bench.read()]

        self.found[name] = noted(run)

    def all(self) -> dict[str, Any]:
        """Everything, one after the other."""
        random = np.random.default_rng(5)
        for width in (64, 13, 2, 1):
            for what, count in (("few", FEW), ("many", MANY)):
                shape = (ROWS, width)
                if count < ROWS:
                    different = random.choice(ROWS, count, replace=False)
                    self.case(f"{what} different ids, width {width}", different, shape)
                again = random.integers(0, ROWS, count)
                self.case(f"{what} ids, width {width}", again, shape)
        frequent = np.minimum(random.geometric(0.1, MANY) - 1, ROWS - 1)
        self.case("frequent ids", frequent, (ROWS, 32))
        self.case("wide rows", random.integers(0, ROWS, 100), (ROWS, 1500))
        self.case("three dimensions", random.integers(0, ROWS, MANY), (ROWS, 4, 8))
        self.case("ids of two dimensions", random.integers(0, ROWS, (20, 30)), (ROWS, 16))
        self.case("one id", 7, (ROWS, 16))
        self.case("no ids", np.zeros([NONE]), (ROWS, 16))
        self.case("rows of nothing", [1, 2], (ROWS, 0))
        self.case("a vector", random.integers(0, ROWS, 30), (ROWS,))
        for what, wrong in (("too large", ROWS), ("negative", -1), ("far off", 2**31 - 1)):
            ids = random.integers(0, ROWS, FEW)
            ids[FEW // 2] = wrong
            self.case(f"an id that is {what}", ids, (ROWS, 16))
        if self._bench.operation.changes:
            ids = random.integers(0, ROWS, FEW)
            if not self._bench.operation.updates:  # TensorFlow would end the process
                self.case("a number for all rows", ids, (ROWS, 16), np.float32(1.5))
            self.case("too few values", ids, (ROWS, 16), _random(8, FEW - 1, 16))
            self.case("too many values", ids, (ROWS, 16), _random(8, 2 * FEW, 16))
        if self._bench.operation.name == "UnsortedSegmentSum":
            for sums in (-1, 0, [ROWS, ROWS], 10 * ROWS):
                self.case(f"{sums} sums", random.integers(0, ROWS, FEW), (ROWS, 16), count=sums)
        for name in self._bench.operation.numbers:
            ids = random.integers(0, ROWS, FEW)
            self.case(f"{name} is a vector", ids, (ROWS, 16), **{name: np.ones(2, np.float32)})
            self.case(f"{name} is 0.25", ids, (ROWS, 16), **{name: 0.25})
            self.case(f"{name} is negative", ids, (ROWS, 16), **{name: -0.25})
        return self.found


def uninitialized(target: str, operation: Operation) -> Any:
    """How it fails without a value."""
    bench = Bench(target, operation, tf.int32)
    ids, values = np.zeros(1, np.int32), np.zeros([1, 4], np.float32)
    found = noted(lambda: [bench.run(ids, values)])
    bench.close()
    return found


def _threads(count: int, work: Callable[[int], None]) -> None:
    threads = [threading.Thread(target=work, args=(each,)) for each in range(count)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()


def concurrent(target: str) -> Any:
    """Two steps at a time, on different rows, and with locks on the same ones."""
    scatter = Bench(target, Operation("ResourceScatterAdd"), tf.int64)
    scatter.assign(var=np.zeros([ROWS, 64], np.float32))

    def add(which: int) -> None:
        ids = np.tile(np.arange(which, ROWS, 2), 8)
        for _ in range(10):
            scatter.run(ids, np.ones([len(ids), 64], np.float32))

    _threads(2, add)
    (table,) = scatter.read()
    scatter.close()
    adagrad = Operation(
        "ResourceSparseApplyAdagradV2",
        ["accum"],
        {"lr": 0.5, "epsilon": 0.0},
        {"use_locking": True},
    )
    locked = Bench(target, adagrad, tf.int64)
    locked.assign(var=np.zeros([ROWS, 64], np.float32), accum=np.zeros([ROWS, 64], np.float32))
    _threads(
        2,
        lambda _: [locked.run(np.arange(ROWS), np.ones([ROWS, 64], np.float32)) for _ in range(10)][
            -1
        ],
    )
    sums = locked.read()
    locked.close()
    return {"added": sorted({float(each) for each in table.flat}), "locked": digest(sums)}


def earlier_reads_stay(target: str) -> bool:
    """What was read before rows changed does not change with them."""
    with tf.Graph().as_default():
        handle = raw.VarHandleOp(dtype=tf.float32, shape=[ROWS, 64], shared_name="read before")
        assigned = raw.AssignVariableOp(resource=handle, value=tf.ones([ROWS, 64]))
        first = raw.ReadVariableOp(resource=handle, dtype=tf.float32)
        ids = tf.range(ROWS)
        changes: list[Any] = []
        for _ in range(3):
            with tf.control_dependencies([first, *changes]):
                changes.append(
                    raw.ResourceScatterAdd(
                        resource=handle, indices=ids, updates=tf.ones([ROWS, 64])
                    )
                )
        with tf.control_dependencies(changes):
            last = raw.ReadVariableOp(resource=handle, dtype=tf.float32)
            kept = tf.reduce_all(tf.equal(first, 1.0))
            changed = tf.reduce_all(tf.equal(last, 4.0))
        with v1.Session(target) as session:
            session.run(assigned)
            return bool(all(session.run([kept, changed])))


def _every(target: str, only: str) -> Iterator[tuple[str, Any]]:
    for operation in OPERATIONS:
        if only not in operation.name:
            continue
        if operation.name != "UnsortedSegmentSum":
            yield f"{operation.title}, no value", uninitialized(target, operation)
        for ids in (tf.int32, tf.int64):
            bench = Bench(target, operation, ids)
            for name, found in Cases(bench, ids).all().items():
                yield f"{operation.title}, {ids.name}: {name}", found
            bench.close()


def main(protocol: str, threads: int, only: str = "") -> None:
    config = v1.ConfigProto(intra_op_parallelism_threads=threads, inter_op_parallelism_threads=2)
    cluster = {"worker": [f"127.0.0.1:{port}" for port in free_ports(1)]}
    server = tf.distribute.Server(cluster, "worker", 0, protocol, config)
    told = {
        "cases": dict(_every(server.target, only)),
        "concurrent": concurrent(server.target),
        "earlier_reads_stay": earlier_reads_stay(server.target),
    }
    before = _rows_done()
    with tf.Graph().as_default(), v1.Session() as session:
        table = v1.get_variable("other", [ROWS, 64], use_resource=True)
        session.run(table.initializer)
        for _ in range(3):
            session.run([table.scatter_sub(tf.IndexedSlices(tf.ones([2, 64]), [1, 2]))])
    told["other_session"] = [now - then for now, then in zip(_rows_done(), before, strict=True)]
    print(json.dumps(told), flush=True)
    os._exit(0)  # a server's threads never end


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), *sys.argv[3:])

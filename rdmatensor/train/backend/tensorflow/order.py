# SPDX-License-Identifier: Apache-2.0
"""Tell whether all processes see the elements of a tf.data.Dataset in one order, and why not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import tensorflow as tf

_SHARD_FIRST = "shard first, rt.shard(dataset).shuffle(...)"
_KEEP_ORDER = f"set deterministic=True, or {_SHARD_FIRST}"


class Order:
    """The order of a dataset's elements, as far as its sources and operations decide it."""

    def __init__(self, data: Any) -> None:
        self.seeds: list[Any] = []
        """What shuffles and draws, with its seeds."""
        self.sources: list[Any] = []
        """The tensors of which the dataset is made."""
        self.why_not = ""
        """Why the order differs between processes; "" if nothing tells that it does."""
        if data.options().deterministic is False:
            self._refuse("the option deterministic=False leaves the order open", _KEEP_ORDER)
        for each in _upstream(data):
            self._see(each)
            for function in each._functions():
                self._see_graph(each, function.function.graph)

    def _refuse(self, cause: str, remedy: str) -> None:
        self.why_not = self.why_not or f"{cause}, so processes would repeat and miss some: {remedy}"

    def _see(self, data: Any) -> None:
        name = type(data).__name__.strip("_")
        if hasattr(data, "_seed2"):
            self._see_seeds(name, int(data._seed), int(data._seed2))
        deterministic = getattr(data, "_deterministic", None)
        if name == "ParallelInterleaveDataset" and deterministic is None:
            deterministic = _attribute(data, "deterministic")
        if deterministic in ("false", b"false", False):
            self._refuse(f"{name} with deterministic=False leaves the order open", _KEEP_ORDER)
        if name.startswith("DataServiceDataset"):
            self._refuse(
                "tf.data's service gives each process elements of its own",
                "let the service shard it, and do not call shard()",
            )
        tensors = getattr(data, "_tensors", None) if name == "TensorSliceDataset" else None
        files = getattr(data, "_filenames", None)
        self.sources += list(tensors or ()) + ([files] if tf.is_tensor(files) else [])

    def _see_seeds(self, name: str, *seeds: int) -> None:
        self.seeds.append((name, *seeds))
        if not any(seeds):
            kind = "shuffles" if "Shuffle" in name else "draws"
            self._refuse(
                f"the dataset {kind} without a seed ({name}), in another order in each process",
                f"{_SHARD_FIRST}, or give it a seed that is the same in all processes (list_files "
                "shuffles too: pass shuffle=False or seed=)",
            )

    def _see_graph(self, data: Any, graph: Any) -> None:
        """Look at the function of a map, filter or interleave, which may give another order in each call."""
        selects = type(data).__name__.strip("_").startswith(("Filter", "TakeWhile", "FlatMap"))
        for operation in _operations(graph):
            inputs = {
                each.name: value
                for each, value in zip(operation.op_def.input_arg, operation.inputs, strict=False)
            }
            if "Dataset" in operation.type and "seed2" in inputs:
                seeds = [tf.get_static_value(inputs[name]) for name in ("seed", "seed2")]
                if None not in seeds:
                    self._see_seeds(operation.type, *(int(each) for each in seeds))
            elif "Dataset" in operation.type and "deterministic" in operation.node_def.attr:
                if operation.node_def.attr["deterministic"].s == b"false":
                    self._refuse(
                        f"{operation.type} with deterministic=False leaves the order open",
                        _KEEP_ORDER,
                    )
            elif selects and "seed2" in operation.node_def.attr:
                attributes = operation.node_def.attr
                self._see_seeds(operation.type, attributes["seed"].i, attributes["seed2"].i)


def _upstream(data: Any) -> Iterator[Any]:
    """Yield the dataset, and all those of which it is made."""
    left, seen = [data], set()
    while left:
        each = left.pop()
        each = getattr(each, "_dataset", each)  # what TensorFlow 1's interface wraps
        if id(each) in seen:
            continue
        seen.add(id(each))
        yield each
        left += each._inputs()


def _operations(graph: Any) -> Iterator[Any]:
    """Yield the operations of a function, and of the functions that it calls."""
    yield from graph.get_operations()
    for function in getattr(graph, "_functions", {}).values():
        inner = getattr(function, "graph", None)
        if inner is not None and inner is not graph:
            yield from _operations(inner)


def _attribute(data: Any, name: str) -> bytes | None:
    """Return an attribute of the last operation of the dataset's graph, or None."""
    policy = tf.data.experimental.ExternalStatePolicy.IGNORE
    try:
        graph = data._as_serialized_graph(external_state_policy=policy)
    except tf.errors.OpError:  # such as one that is too large to be written
        return None
    nodes = tf.compat.v1.GraphDef.FromString(graph.numpy()).node
    found = [each.attr[name].s for each in nodes if name in each.attr and "Dataset" in each.op]
    return found[-1] if found else None

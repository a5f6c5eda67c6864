# SPDX-License-Identifier: Apache-2.0
"""Run collective operations on tensors, in eager code and in functions.

An operation is two nodes of a graph: one starts it, one waits for it. TensorFlow runs the first ones in the
order of the program, because all use one resource; so every process starts its operations in the same order.
Between the two, the graph goes on.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_args

import tensorflow as tf

from .... import tensorflow as plugin
from ...._api.collective import Kind, Op
from ...._api.plugin import library as plugin_library
from ...._api.wait import milliseconds
from ...._ffi import ffi
from ....errors import RdmaError, Unsupported, UsageError
from ....group import Group

if TYPE_CHECKING:
    from ....device import Device

_Function = TypeVar("_Function", bound=Callable[..., Any])
# The attribute of a graph that has the token of the last operation in it, by group.
_LAST = "_rdmatensor_last"
TYPES = {
    *(tf.float16, tf.bfloat16, tf.float32, tf.float64, tf.int8, tf.int16, tf.int32, tf.int64),
    *(tf.uint8, tf.uint16, tf.uint32, tf.uint64),
}
# A type for operations without tensors, which the kernel has to have.
_ANY = tf.float32
# Otherwise AutoGraph raises its StagingError in their place, from functions of the user's.
setattr(RdmaError, "ag_pass_through", True)  # noqa: B010


def no_autograph(function: _Function) -> _Function:
    """Keep AutoGraph from translating the function when tf.function traces it."""
    kept: _Function = tf.autograph.experimental.do_not_convert(function)
    return kept


@cache
def library() -> Any:
    """Return the module of TensorFlow's wrappers. Raises Unsupported if there is none for this TensorFlow."""
    minor = ".".join(tf.__version__.split(".")[:2])
    path = Path(__file__).parents[3] / f"librdmatensor_ops_{minor.replace('.', '_')}.so"
    if not plugin.loaded() or not path.exists():
        raise Unsupported(
            "rdmatensor.train cannot be used with this TensorFlow: "
            + (plugin.why_not() or f"this installation has no operations for TensorFlow {minor}"),
            "UNSUPPORTED",
        )
    return tf.load_op_library(str(path))


def handle_of(device: Device, group: Group, timeout: float, left: Any = None) -> Any:
    """Return the group as a resource. Group and device live until `Backend.leave`.

    A handle that an earlier group has `left` becomes this group's, also in functions that were traced with
    it.
    """
    places = {
        "device": int(ffi.cast("intptr_t", device._handle)),
        "group": int(ffi.cast("intptr_t", group._calls.handle())),
        "timeout_ms": milliseconds(timeout),
    }
    refuse_sessions("a group")
    with tf.device("/CPU:0"):
        if left is None:
            return library().rdmatensor_group(**places)
        library().rdmatensor_rejoin(left, **places)
        return left


def listed(heading: str, lines: Sequence[str]) -> str:
    """Return the detail of an operation on many things: errors show the first line that differs."""
    return "\n".join([heading, *lines])


def _first_line(detail: str) -> str:
    return detail.partition("\n")[0]


def trim() -> int:
    """Give unused memory back to the machine, after what steps do not repeat. Return the bytes of tensors.

    Pages that a device has pinned stay.
    """
    function = plugin_library().rdt_tf_arena_trim
    function.restype, function.argtypes = ctypes.c_uint64, []
    given: int = function()
    # Small tensors, and what Python has freed. Other C libraries than glibc keep less, and have no such call.
    getattr(ctypes.CDLL(None), "malloc_trim", int)(0)
    return given


class Started:
    """An operation under way. `finish` waits for it; call it once."""

    def __init__(self, token: Any, dtype: Any, shapes: Sequence[Any]) -> None:
        self.token = token
        self._dtype = dtype
        self._shapes = shapes

    def finish(self) -> list[Any]:
        """Wait for the operation, and return its results."""
        if not self._shapes:
            library().rdmatensor_wait(self.token)
            return []
        results: list[Any] = library().rdmatensor_finish(
            self.token, T=self._dtype, N=len(self._shapes), name="finish"
        )
        if not tf.executing_eagerly():
            for result, shape in zip(results, self._shapes, strict=True):
                result.set_shape(shape)
        return results


def start(
    handle: Any,
    kind: Kind,
    tensors: Sequence[Any],
    detail: str,
    *,
    reduction: str = "sum",
    scale: float = 1.0,
    root: int = 0,
    shapes: Sequence[Any] | None = None,
) -> Started:
    """Start an operation. `detail` names it in errors, and has to be the same in all processes.

    `tensors` have one type; all_reduce and broadcast take several. `scale` multiplies them first. `shapes`
    are those of the results, if they differ from those of `tensors`. Raises UsageError if this process is in
    no group, if tensors of the type do not travel, or if XLA compiles the function, and Unsupported if the
    graph is one for a session.
    """
    if handle is None:
        raise UsageError(
            f"{_first_line(detail)}: this process has come back to a training under way, and is in no group: "
            "it can train with a synchronizer that waits for nobody, and needs nothing that all processes do "
            "together"
        )
    dtype = tensors[0].dtype if tensors else _ANY
    if dtype not in TYPES:
        raise UsageError(
            f"{_first_line(detail)}: tensors of {dtype.name} do not travel: cast them to another type, such "
            "as int8 or float32"
        )
    refuse_sessions(detail)
    refuse_xla(detail)
    if scale != 1.0:  # which the core does not compare
        heading = _first_line(detail)
        detail = f"{heading}, times {scale:g}{detail[len(heading) :]}"
    # Tensors in the memory of accelerators are brought here by TensorFlow.
    with tf.device("/CPU:0"):
        last = _last_operations()
        before = last.get(id(handle))
        token = library().rdmatensor_start(
            handle,
            list(tensors),
            [] if before is None else [before],
            kind=kind,
            detail=detail,
            reduction=reduction,
            scale=scale,
            root=root,
        )
        last[id(handle)] = token
    return Started(token, dtype, [each.shape for each in tensors] if shapes is None else shapes)


def _last_operations() -> dict[int, Any]:
    """Return the last operation of each group in the function being traced: they start in program order."""
    if tf.executing_eagerly():
        return {}
    graph = tf.compat.v1.get_default_graph()
    if graph._get_control_flow_context() is not None:
        return {}
    if not hasattr(graph, _LAST):
        setattr(graph, _LAST, {})
    found: dict[int, Any] = getattr(graph, _LAST)
    return found


def averaging(dtype: Any, size: int) -> dict[str, Any]:
    """Return the arguments with which `start` averages over `size` processes.

    Sums of float16 would overflow where means do not, so those are scaled first.
    """
    return {"scale": 1.0 / size} if dtype == tf.float16 else {"reduction": "mean"}


def refuse_sessions(detail: str) -> None:
    """Raise Unsupported if a graph for a session of TensorFlow 1 is built."""
    if tf.executing_eagerly() or tf.compat.v1.get_default_graph().building_function:
        return
    raise Unsupported(
        f"{_first_line(detail)}: operations between processes run in eager code and in functions, not in "
        "sessions of TensorFlow 1: use tf.function instead of tf.Graph, and do not call "
        "tf.compat.v1.disable_eager_execution or disable_v2_behavior",
        "UNSUPPORTED",
    )


def refuse_xla(detail: str) -> None:
    """Raise UsageError if a function is traced that XLA compiles."""
    if tf.executing_eagerly():
        return
    graph = tf.compat.v1.get_default_graph()
    while graph is not None:
        if getattr(graph, "_xla_compile", False) or _is_compiled(graph):
            raise UsageError(
                f"{_first_line(detail)}: XLA cannot compile operations between processes: pass "
                "jit_compile=False to tf.function. tf.xla.experimental.jit_scope() in it compiles the rest"
            )
        graph = getattr(graph, "outer_graph", None)


def _is_compiled(graph: Any) -> bool:
    context = graph._get_control_flow_context()
    while context is not None:
        if context.IsXLAContext():
            return True
        context = context.outer_context
    return False


def _check_op(op: str, dtype: Any, name: str) -> None:
    if op not in get_args(Op):
        raise UsageError(f"{name}: op is {op!r}: give one of {', '.join(get_args(Op))}")
    if op == "mean" and not dtype.is_floating:
        raise UsageError(f"{name}: the mean of {dtype.name}: use floats, or op='sum'")


def _one(handle: Any, kind: Kind, tensor: Any, detail: str, **more: Any) -> Any:
    shapes = [more.pop("shape", tensor.shape)]
    return start(handle, kind, [tensor], detail, shapes=shapes, **more).finish()[0]


@no_autograph
def all_reduce(run: Any, tensor: Any, op: Op, name: str) -> Any:
    """Do what rdmatensor.train.ops.all_reduce does, for the processes of `run`."""
    tensor = tf.convert_to_tensor(tensor)
    _check_op(op, tensor.dtype, name)
    if run.size == 1:
        return tf.identity(tensor)
    more = averaging(tensor.dtype, run.size) if op == "mean" else {"reduction": op}

    def apply(value: Any) -> Any:
        def gradient(upstream: Any) -> Any:
            if op not in ("mean", "sum"):
                raise UsageError(f"{name}: all_reduce by {op!r} has no gradient: use sum or mean")
            return all_reduce(run, upstream, op, f"gradient of {name}")

        return _one(run.handle, "all_reduce", value, name, **more), gradient

    return tf.custom_gradient(apply)(tensor)


@no_autograph
def reduce_scatter(run: Any, tensor: Any, op: Op, name: str) -> Any:
    """Do what rdmatensor.train.ops.reduce_scatter does, for the processes of `run`."""
    tensor = tf.convert_to_tensor(tensor)
    _check_op(op, tensor.dtype, name)
    if run.size == 1:
        return tf.identity(tensor)
    rows = tensor.shape[0] if tensor.shape.rank else None
    shape = tf.TensorShape([rows and rows // run.size]).concatenate(tensor.shape[1:])
    scale = 1.0 / run.size if op == "mean" else 1.0
    reduction = "sum" if op == "mean" else op

    def apply(value: Any) -> Any:
        def gradient(upstream: Any) -> Any:
            if reduction != "sum":
                raise UsageError(
                    f"{name}: reduce_scatter by {op!r} has no gradient: use sum or mean"
                )
            return all_gather(run, upstream * scale, f"gradient of {name}")

        result = _one(
            run.handle, "reduce_scatter", value, name, shape=shape, scale=scale, reduction=reduction
        )
        return result, gradient

    return tf.custom_gradient(apply)(tensor)


@no_autograph
def all_gather(run: Any, tensor: Any, name: str) -> Any:
    """Do what rdmatensor.train.ops.all_gather does, for the processes of `run`."""
    tensor = tf.convert_to_tensor(tensor)
    if run.size == 1:
        return tf.identity(tensor)
    rows = tensor.shape[0] if tensor.shape.rank else None
    shape = tf.TensorShape([rows and rows * run.size]).concatenate(tensor.shape[1:])

    def apply(value: Any) -> Any:
        def gradient(upstream: Any) -> Any:
            return reduce_scatter(run, upstream, "sum", f"gradient of {name}")

        return _one(run.handle, "all_gather", value, name, shape=shape), gradient

    return tf.custom_gradient(apply)(tensor)


@no_autograph
def all_to_all(run: Any, tensor: Any, name: str) -> Any:
    """Do what rdmatensor.train.ops.all_to_all does, for the processes of `run`."""
    tensor = tf.convert_to_tensor(tensor)
    if run.size == 1:
        return tf.identity(tensor)

    def apply(value: Any) -> Any:
        def gradient(upstream: Any) -> Any:
            return all_to_all(run, upstream, f"gradient of {name}")

        return _one(run.handle, "all_to_all", value, name), gradient

    return tf.custom_gradient(apply)(tensor)


@no_autograph
def broadcast(run: Any, tensor: Any, root: int, name: str) -> Any:
    """Do what rdmatensor.train.ops.broadcast does, for the processes of `run`."""
    tensor = tf.convert_to_tensor(tensor)
    if not 0 <= root < run.size:
        raise UsageError(f"{name}: root is {root}: give a rank, 0 to {run.size - 1}")
    if run.size == 1:
        return tf.identity(tensor)
    if tensor.dtype.is_bool:
        return tf.cast(broadcast(run, tf.cast(tensor, tf.uint8), root, name), tf.bool)

    def apply(value: Any) -> Any:
        def gradient(upstream: Any) -> Any:
            total = all_reduce(run, upstream, "sum", f"gradient of {name}")
            return total if run.rank == root else tf.zeros_like(total)

        return _one(run.handle, "broadcast", value, name, root=root), gradient

    return tf.custom_gradient(apply)(tensor)


@no_autograph
def barrier(run: Any, name: str) -> None:
    """Do what rdmatensor.train.ops.barrier does, for the processes of `run`."""
    if run.size > 1:
        start(run.handle, "barrier", [], name).finish()

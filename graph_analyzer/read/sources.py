# SPDX-License-Identifier: Apache-2.0
"""Read every source that can be analysed into a GraphDef and what runs of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..model.errors import AnalysisError
from .devices import parse
from .graphs import Program, Signatures, check
from .placement import SUFFIXES, PlacedOn, copy_to_workers, load, training_step


@dataclass(frozen=True)
class Request:
    """The arguments of `analyze` besides the source."""

    default: str
    strategy: PlacedOn | None = None
    batch_size: int | None = None
    fetches: Sequence[Any] | None = None
    feeds: Sequence[Any] | None = None
    args: Sequence[Any] | None = None
    signature: str = "serving_default"


def read(source: Any, request: Request) -> Program:
    """Read `source`. Raises AnalysisError if it is of a kind that cannot be analysed."""
    import tensorflow as tf

    if isinstance(source, (str, Path)):
        return _from_path(Path(source), request)
    if isinstance(source, tf.compat.v1.GraphDef):
        copy = tf.compat.v1.GraphDef()
        copy.CopyFrom(source)
        return _of_session(copy, request)
    if _is_function(source):
        return _of_function(_concrete(source, request), request)
    if isinstance(source, tf.Graph):
        return _of_session(source.as_graph_def(), request)
    if hasattr(source, "trainable_variables") and callable(source):
        return _of_model(source, request)
    raise AnalysisError(
        f"a {type(source).__name__} cannot be analysed: give a tf.Graph, a GraphDef, a function of "
        "tf.function, a Keras model, or the path of a SavedModel or GraphDef"
    )


def _is_function(source: Any) -> bool:
    return hasattr(source, "get_concrete_function") or (
        hasattr(source, "captured_inputs") and hasattr(source, "graph")
    )


def _names(items: Sequence[Any] | None) -> list[str]:
    return [item if isinstance(item, str) else str(item.name) for item in items or ()]


def _of_session(graph: Any, request: Request) -> Program:
    check(graph)
    program = Program(graph, request.default)
    nodes = {node.name for node in graph.node}
    for name in dict.fromkeys(_names(request.fetches)):
        if name in nodes:
            program.targets.append(name)
        else:
            program.fetches.append(name)
    program.feeds = [
        f"{name}:0" if name in nodes else name for name in dict.fromkeys(_names(request.feeds))
    ]
    return program


def _concrete(source: Any, request: Request) -> Any:
    if not hasattr(source, "get_concrete_function"):
        return source
    if request.args is None and getattr(source, "input_signature", None) is None:
        raise AnalysisError(
            "a tf.function has one graph per signature: give analyze(..., args=[tf.TensorSpec(...)]), "
            "or a ConcreteFunction"
        )
    return source.get_concrete_function(*(request.args or ()))


def _of_function(function: Any, request: Request) -> Program:
    graph = function.graph
    names = {id(variable.handle): variable.name for variable in function.variables}
    program = _of_func_graph(graph, names, request)
    for number, tensor in enumerate(graph.outputs):
        _add_result(program, number, tensor)
    captured = {tensor.name for _, tensor in graph.captures}
    args = {tensor.op.name for tensor in graph.inputs if tensor.name not in captured}
    for node in program.graph.node:
        if node.name in args:
            node.device = request.default  # the caller has them there
    program.args |= args
    return program


def _add_result(program: Program, number: int, tensor: Any) -> None:
    """Add the end of a function's output, on the device where TensorFlow leaves the output.

    That is the device of its maker: TensorFlow skips identities that name no device, such as those that
    tf.function returns.
    """
    source = tensor.op
    while source.type == "Identity" and not (source.device or "_class" in source.node_def.attr):
        source = source.inputs[0].op
    end = program.graph.node.add(name=f"rdmatensor_result_{number}", op="Identity")
    end.input.append(tensor.name)
    end.attr["T"].type = tensor.dtype.as_datatype_enum
    end.device = source.device
    program.ops[end.name] = "_Retval"
    program.targets.append(end.name)


def _of_model(model: Any, request: Request) -> Program:
    if request.strategy is None:
        raise AnalysisError(
            "a Keras model names no tasks: give analyze(model, strategy=PlacedOn(ps=2, workers=2)), or a "
            "cluster with the jobs ps and worker (--cluster FILE)"
        )
    graph = training_step(model, request.batch_size, request.args)
    names = {id(variable.value.handle): variable.path for variable in model.variables}
    program = _of_func_graph(graph, names, request)
    copy_to_workers(program, request.strategy)
    return program


def _of_func_graph(graph: Any, names: dict[int, str], request: Request) -> Program:
    """Return the program of a FuncGraph, in which everything runs that changes state.

    Captured variables become variables again. `names` holds their names by the id of their handles.
    """
    program = Program(graph.as_graph_def(), request.default)
    signatures = Signatures(program.graph)
    program.targets = [
        node.name
        for node in program.graph.node
        if signatures.stateful(node) and not signatures.of(node).name.startswith("Placeholder")
    ]
    nodes = {node.name: node for node in program.graph.node}
    variables = {}
    for outer, inner in graph.captures:
        name, info = inner.op.name, _handle_data(outer)
        # What lies on this machine, such as a constant, belongs to the task that runs the graph.
        device = outer.device or ""
        nodes[name].device = "" if parse(device).job == "localhost" else device
        if info is None:
            program.args.add(name)
        else:
            variables[name] = info
            _make_variable(nodes[name], info, names.get(id(outer), name).removesuffix(":0"))
    if request.strategy is not None:
        sizes = [_bytes(info) for info in variables.values()]
        for name, device in zip(variables, request.strategy.devices(sizes), strict=True):
            nodes[name].device = device
            program.dealt.append(nodes[name].attr["shared_name"].s.decode())
    return program


def _handle_data(handle: Any) -> Any:
    """Return the type and shape of the variable behind a resource handle; None if it is another resource."""
    data = getattr(handle, "_handle_data", None)
    return data.shape_and_type[0] if data is not None and data.is_set else None


def _bytes(info: Any) -> int:
    if info.shape.unknown_rank:
        return 0
    import tensorflow as tf

    count = 1
    for dim in info.shape.dim:
        count *= max(dim.size, 1)
    return count * int(tf.dtypes.as_dtype(info.dtype).size)


def _make_variable(node: Any, info: Any, name: str) -> None:
    """Turn the placeholder of a captured handle into the op that makes the variable and knows its shape."""
    node.op = "VarHandleOp"
    node.attr.clear()
    node.attr["dtype"].type = info.dtype
    node.attr["shape"].shape.CopyFrom(info.shape)
    node.attr["shared_name"].s = name.encode()


def _from_path(path: Path, request: Request) -> Program:
    import tensorflow as tf
    from google.protobuf import message, text_format

    if not path.exists():
        raise AnalysisError(f"{path}: no such file or folder")
    if path.is_dir():
        return _of_saved_model(path, request)
    if path.suffix in SUFFIXES:
        return _of_model(load(str(path)), request)
    graph = tf.compat.v1.GraphDef()
    try:
        if path.suffix in (".pbtxt", ".txt"):
            text_format.Parse(path.read_text(), graph)
        else:
            graph.ParseFromString(path.read_bytes())
    except (message.DecodeError, text_format.ParseError, UnicodeDecodeError) as error:
        raise AnalysisError(
            f"{path}: not a GraphDef ({error}): write one with tf.io.write_graph, or give the folder of a "
            "SavedModel"
        ) from error
    if not graph.node:
        raise AnalysisError(f"{path}: the GraphDef has no nodes")
    return _of_session(graph, request)


def _of_saved_model(path: Path, request: Request) -> Program:
    from tensorflow.python.saved_model import loader_impl

    try:
        saved = loader_impl.parse_saved_model(str(path))
    except OSError as error:
        raise AnalysisError(f"{path}: not a SavedModel: {error}") from error
    meta = saved.meta_graphs[0]
    bodies = [function.node_def for function in meta.graph_def.library.function]
    if not any(
        parse(node.device).job for nodes in [meta.graph_def.node, *bodies] for node in nodes
    ):
        raise AnalysisError(
            f"{path}: this SavedModel names no tasks, so nothing of it travels: give the Keras model, as a "
            ".keras file or module:function, with the cluster, or export what tf.device places on tasks"
        )
    if request.fetches is not None:
        return _of_session(meta.graph_def, request)
    if request.signature not in meta.signature_def:
        raise AnalysisError(
            f"{path}: no signature {request.signature!r}; available: {sorted(meta.signature_def)}"
        )
    signature = meta.signature_def[request.signature]
    program = _of_session(meta.graph_def, request)
    program.fetches = sorted({info.name for info in signature.outputs.values()})
    program.feeds = sorted({info.name for info in signature.inputs.values()})
    return program

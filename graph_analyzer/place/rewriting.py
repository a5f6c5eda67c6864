# SPDX-License-Identifier: Apache-2.0
"""Rewrites a graph as TensorFlow does between the user and the executors."""

from __future__ import annotations

import re
from typing import Any

from ..model.errors import AnalysisError
from ..read.devices import parse
from ..read.graphs import Program, Signatures, keep, reference, sinks
from ..read.ops import CALLS, CONTROL_FLOW


def inline(program: Program) -> None:
    """Replace calls of functions, loops and conditionals by their bodies."""
    graph = program.graph
    library = {function.signature.name for function in graph.library.function}
    if any(_inlined(node, library) for node in graph.node):
        from tensorflow.core.protobuf import config_pb2

        config = config_pb2.ConfigProto()
        config.graph_options.rewrite_options.optimizers.append("function")
        inputs = {node.name: set(node.input) for node in graph.node if node.op in CONTROL_FLOW}
        _grappler(program, config)
        _relax(program.graph, inputs)


# The nodes by which a loop or an inlined function waits, and the arguments of a function.
_WAITS = re.compile(r"(.+)/(LoopControlInputs|input_control_node)/_\d+")
_ARGUMENT = re.compile(r"(.+)/input/_(\d+)")
_CONDITION = re.compile(r".+/cond/_\d+")


def _relax(graph: Any, inputs: dict[str, set[str]]) -> None:
    """Let operations of loops and functions run as soon as their own inputs are there, as sessions do.

    The optimiser makes each of them wait for all inputs of the loop or function. `inputs` are the inputs of
    loops before it ran.
    """
    arguments: dict[str, dict[int, str]] = {}
    for node in graph.node:
        if found := _ARGUMENT.fullmatch(node.name):
            maker = f"^{reference(node.input[0])[0]}"
            arguments.setdefault(found[1], {})[int(found[2])] = maker
    idle = set()
    for node in graph.node:
        if found := _WAITS.fullmatch(node.name):
            makers = arguments.get(found[1], {})
            added = set(makers.values())
            if makers and _CONDITION.fullmatch(found[1]):
                added.discard(makers[min(makers)])  # it keeps the condition inside the loop
            if found[1] in inputs:
                added.update(text for text in node.input if text not in inputs[found[1]])
            _set_inputs(node, [text for text in node.input if text not in added])
            if not node.input:
                idle.add(f"^{node.name}")
    for node in graph.node:
        if not idle.isdisjoint(node.input):
            _set_inputs(node, [text for text in node.input if text not in idle])


def _set_inputs(node: Any, inputs: list[str]) -> None:
    del node.input[:]
    node.input.extend(inputs)


def _inlined(node: Any, library: set[str]) -> bool:
    if node.op in CONTROL_FLOW:
        return bool(node.attr["_lower_using_switch_merge"].b)
    return node.op in CALLS or node.op in library


def optimize(program: Program) -> None:
    """Run TensorFlow's graph optimiser with its default settings, as sessions do. Nodes must be placed."""
    from tensorflow.core.protobuf import config_pb2

    _grappler(program, config_pb2.ConfigProto())


def roots(program: Program) -> list[str]:
    """Return the nodes that must run: all sinks unless the program names some."""
    wanted = [reference(name)[0] for name in program.fetches] + program.targets
    return wanted or sinks(program.graph)


def _grappler(program: Program, config: Any) -> None:
    from tensorflow.core.protobuf import meta_graph_pb2
    from tensorflow.python.framework import errors_impl
    from tensorflow.python.grappler import tf_optimizer

    config.graph_options.rewrite_options.min_graph_nodes = -1  # rewrite small graphs too
    meta = meta_graph_pb2.MetaGraphDef(graph_def=program.graph)
    # Grappler keeps the nodes of this collection.
    kept = meta.collection_def["train_op"].node_list.value
    kept.extend(dict.fromkeys([*roots(program), *(reference(f)[0] for f in program.feeds)]))
    try:
        program.graph.CopyFrom(tf_optimizer.OptimizeGraph(config, meta))
    except (errors_impl.OpError, ValueError, RuntimeError) as error:
        raise AnalysisError(
            f"TensorFlow cannot rewrite this graph: {error}: check that it runs in a session"
        ) from error


def cut(program: Program) -> None:
    """Replace fed and fetched tensors by their ends at the session's own task, and remove unneeded nodes.

    The ends have the names that TensorFlow gives them.
    """
    outputs: dict[str, list[int]] = {}
    if program.feeds or program.fetches:
        signatures = Signatures(program.graph)
        outputs = {node.name: signatures.outputs(node) for node in program.graph.node}
    wanted = [_fetch(program, name, outputs) for name in program.fetches]
    for name in program.feeds:
        _feed(program, name, outputs)
    keep(program.graph, [*wanted, *program.targets] or sinks(program.graph))


def _output(name: str, outputs: dict[str, list[int]], what: str) -> tuple[str, int, int]:
    """Return the node, output and type of a tensor."""
    node, output = reference(name)
    if node not in outputs or not 0 <= output < len(outputs[node]):
        raise AnalysisError(f"the graph has no tensor {name!r}, so it cannot be {what}")
    return node, output, outputs[node][output]


def _fetch(program: Program, name: str, outputs: dict[str, list[int]]) -> str:
    node, output, dtype = _output(name, outputs, "fetched")
    end = program.graph.node.add(name=f"_send_{node}_{output}", op="Identity")
    end.input.append(f"{node}:{output}")
    end.attr["T"].type = dtype
    end.device = program.default
    program.ops[end.name] = "_Send"
    return str(end.name)


def _feed(program: Program, name: str, outputs: dict[str, list[int]]) -> None:
    node, output, dtype = _output(name, outputs, "fed")
    end = program.graph.node.add(name=f"_recv_{node}_{output}", op="Placeholder")
    end.attr["dtype"].type = dtype
    source = next(n for n in program.graph.node if n.name == node)
    if "shape" in source.attr:
        end.attr["shape"].CopyFrom(source.attr["shape"])
    else:
        end.attr["shape"].shape.unknown_rank = True
    end.device = program.default
    program.fed[end.name] = f"{node}:{output}"
    fed = {f"{node}:{output}", node if output == 0 else ""}
    for user in program.graph.node:
        for index, text in enumerate(user.input):
            if text in fed:
                user.input[index] = f"{end.name}:0"


# TensorFlow copies constants of up to so many elements to each task that uses them.
_COPIED_ELEMENTS = 16


def replicate_constants(program: Program) -> None:
    """Give each device that uses a small constant a copy of it, as TensorFlow does. Nodes must be placed.

    A constant that others wait for, by a control edge, stays as it is.
    """
    graph = program.graph
    nodes = {node.name: node for node in graph.node}
    users: dict[str, list[tuple[Any, int]]] = {}
    awaited = set(roots(program))
    for node in graph.node:
        for number, text in enumerate(node.input):
            if text.startswith("^"):
                awaited.add(text[1:])
            else:
                users.setdefault(reference(text)[0], []).append((node, number))
    for name, takers in users.items():
        constant = nodes[name]
        places = {parse(taker.device)._replace(kind="CPU", number=0) for taker, _ in takers}
        if constant.op != "Const" or name in awaited or len(places) < 2:
            continue
        count = 1
        for dim in constant.attr["value"].tensor.tensor_shape.dim:
            count *= dim.size
        if count > _COPIED_ELEMENTS or parse(constant.device).kind != "CPU":
            continue
        for number, place in enumerate(sorted(places, key=str)):
            copy = graph.node.add()
            copy.CopyFrom(constant)
            copy.name, copy.device = f"{name}/replicate/_{number}", str(place)
            for taker, index in takers:
                if parse(taker.device)._replace(kind="CPU", number=0) == place:
                    taker.input[index] = copy.name
        graph.node.remove(constant)

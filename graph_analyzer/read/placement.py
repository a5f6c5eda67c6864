# SPDX-License-Identifier: Apache-2.0
"""Turn a Keras model into one training step of parameter servers and workers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ..model.errors import AnalysisError
from .devices import parse
from .graphs import Program, reference

# What names it is on the parameter server that uses it.
_JOB = "ps"
_SERVERS = f"/job:{_JOB}"


SUFFIXES = (".keras", ".h5")


def load(path: str) -> Any:
    """Return the Keras model in a file.

    Raises AnalysisError if there is none, or if it needs classes that are not here.
    """
    import keras

    try:
        return keras.models.load_model(path, compile=False)
    except Exception as error:  # Keras raises what its readers do
        raise AnalysisError(
            f"{path} does not load as a Keras model ({error}); if it has layers of your own, give "
            "module:function"
        ) from error


@dataclass(frozen=True)
class PlacedOn:
    """Variables on `ps` parameter servers, and computation on `workers` workers.

    `spread` is how variables are dealt out, in the order of their creation: in turn, or each to the server
    that holds the fewest bytes.
    """

    ps: int = 1
    workers: int = 1
    spread: Literal["round_robin", "bytes"] = "round_robin"

    def __post_init__(self) -> None:
        if self.ps < 1 or self.workers < 1:
            raise AnalysisError("PlacedOn needs at least one parameter server and one worker")
        if self.spread not in ("round_robin", "bytes"):
            raise AnalysisError(f"spread is {self.spread!r}: it must be 'round_robin' or 'bytes'")

    @classmethod
    def cluster(
        cls,
        cluster: Mapping[str, Sequence[str]],
        spread: Literal["round_robin", "bytes"] = "round_robin",
    ) -> PlacedOn:
        """Place a model on all tasks of the jobs "ps" and "worker"."""
        return cls(len(cluster.get("ps", ())), len(cluster.get("worker", ())), spread)

    def devices(self, sizes: Sequence[int]) -> list[str]:
        """Return the devices of variables of these sizes in bytes."""
        held = [0] * self.ps
        chosen = []
        for number, size in enumerate(sizes):
            task = number % self.ps if self.spread == "round_robin" else held.index(min(held))
            held[task] += size
            chosen.append(f"/job:ps/replica:0/task:{task}/device:CPU:0")
        return chosen

    def worker(self, task: int) -> str:
        """Return the device of a worker."""
        return f"/job:worker/replica:0/task:{task}/device:CPU:0"


def training_step(model: Any, batch_size: int | None, args: Sequence[Any] | None = None) -> Any:
    """Return a FuncGraph in which one worker takes one step of gradient descent with `model`.

    `args` are specifications of the model's arguments; without them, the model's inputs are taken. Nodes of
    the worker name no task. The loss is the mean square of the outputs, and the optimiser has no state. Other
    losses and optimisers give the same plan: a loss stays on its worker, and an optimiser's state stays with
    the variables.
    """
    import tensorflow as tf
    from tensorflow.python.framework.func_graph import FuncGraph

    graph = FuncGraph(f"{model.name}_step")
    with graph.as_default():
        arguments = _arguments(model, batch_size, args, tf)
        with tf.GradientTape() as tape:
            outputs = tf.nest.flatten(model(*arguments, training=True))
            losses = [tf.reduce_mean(tf.square(tf.cast(output, tf.float32))) for output in outputs]
            loss = tf.add_n(losses)
        variables = [variable.value for variable in model.trainable_variables]
        for variable, gradient in zip(variables, tape.gradient(loss, variables), strict=True):
            _apply(variable, gradient, tf)
    return graph


def _apply(variable: Any, gradient: Any, tf: Any) -> None:
    if isinstance(gradient, tf.IndexedSlices):
        tf.raw_ops.ResourceScatterSub(
            resource=variable.handle, indices=gradient.indices, updates=gradient.values
        )
    elif gradient is not None:
        with tf.device(_SERVERS):
            rate = tf.constant(0.01, gradient.dtype)
        tf.raw_ops.ResourceApplyGradientDescent(var=variable.handle, alpha=rate, delta=gradient)


def _arguments(
    model: Any, batch_size: int | None, args: Sequence[Any] | None, tf: Any
) -> list[Any]:
    """Return placeholders for the arguments of a model."""
    import keras

    def placeholder(spec: Any) -> Any:
        shape = [batch_size, *spec.shape[1:]] if len(spec.shape) else []
        return tf.compat.v1.placeholder(spec.dtype, shape, _name(spec))

    if args is not None:
        return [tf.nest.map_structure(placeholder, each) for each in args]
    if getattr(model, "inputs", None):
        inputs = [placeholder(tensor) for tensor in model.inputs]
        # Functional models know how their inputs are nested.
        like = getattr(model, "_inputs_struct", inputs if len(inputs) > 1 else inputs[0])
        return [tf.nest.pack_sequence_as(like, inputs)]

    def of_shape(shape: tuple[int | None, ...]) -> Any:
        return placeholder(keras.InputSpec(dtype=model.input_dtype, shape=shape))

    # What Keras remembers of the first call, or of build(), by the names of the arguments.
    shapes = getattr(model, "_build_shapes_dict", None)
    if not getattr(model, "built", False) or not shapes:
        raise AnalysisError(
            f"model {model.name!r} has no inputs yet: start it with keras.Input, call it once, or give "
            "analyze(..., args=[tf.TensorSpec(...)])"
        )
    return [keras.tree.map_shape_structure(of_shape, each) for each in shapes.values()]


def _name(spec: Any) -> str:
    """Return the name of an input with the characters that a node's name may have."""
    return "".join(c if c.isalnum() else "_" for c in spec.name or "").lstrip("_") or "input"


def copy_to_workers(program: Program, strategy: PlacedOn) -> None:
    """Give each worker a copy of the program, named after it; what names another task stays the only one.

    Nodes that name no task are the worker's, with what they hold, such as constants and lookup tables.
    """
    once: list[Any] = []
    own: list[Any] = []
    for node in program.graph.node:
        shared = parse(node.device).job not in (None, "localhost", _JOB)
        (once if shared or node.op == "VarHandleOp" else own).append(node)
    names = {node.name for node in own}

    def renamed(text: str, task: int) -> str:
        control = "^" * text.startswith("^")
        name = text.removeprefix("^")
        return f"{control}worker{task}/{name}" if reference(text)[0] in names else text

    graph = type(program.graph)(
        library=program.graph.library, versions=program.graph.versions, node=once
    )
    for task in range(strategy.workers):
        worker = parse(strategy.worker(task))
        for node in own:
            copy = graph.node.add()
            copy.CopyFrom(node)
            copy.name = renamed(node.name, task)
            device = parse(node.device)
            if device.job != _JOB:
                copy.device = str(
                    device._replace(job=None, replica=None, task=None).or_else(worker)
                )
            for index, text in enumerate(node.input):
                copy.input[index] = renamed(text, task)
            if "_class" in node.attr:
                groups = copy.attr["_class"].list.s
                for index, text in enumerate(groups):
                    prefix, at, name = text.decode().partition("@")
                    groups[index] = f"{prefix}{at}{renamed(name, task)}".encode()
    tasks = range(strategy.workers)
    program.targets = [
        name
        for target in program.targets
        for name in dict.fromkeys(renamed(target, task) for task in tasks)
    ]
    program.args = {renamed(name, task) for name in program.args for task in tasks}
    program.graph.CopyFrom(graph)

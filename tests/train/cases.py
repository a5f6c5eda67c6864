# SPDX-License-Identifier: Apache-2.0
"""What the processes of the tests do: a case returns what is to be compared. Run by ranks.py."""

from __future__ import annotations

import faulthandler
import importlib
import json
import os
import re
import signal
import sys
import time
from pathlib import Path
from types import SimpleNamespace as Namespace
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras.src.backend.tensorflow.trainer import TensorFlowTrainer

import rdmatensor.train as rt
from rdmatensor import UsageError
from train.asynchronous_cases import fit_with_a_kill  # noqa: F401
from train.data_cases import shards_of_all  # noqa: F401
from train.failing_cases import *  # noqa: F403
from train.operation_cases import *  # noqa: F403
from train.paused_cases import paused  # noqa: F401
from train.resume_cases import resumed, resumes  # noqa: F401
from train.sharded_cases import *  # noqa: F403
from train.split_cases import load_without_us, split_cases  # noqa: F401
from train.split_kills import split_kill  # noqa: F401
from train.state_cases import *  # noqa: F403
from train.table_cases import table, tables, uneven  # noqa: F401
from train.table_choices import chosen, dying, refused, tables_resumed  # noqa: F401
from train.together_cases import *  # noqa: F403
from train.tree_cases import trees, trees_probed  # noqa: F401
from train.weighing_cases import weighed  # noqa: F401
from train.whole_cases import whole  # noqa: F401

ROWS, WIDTH, CLASSES = 64, 12, 4


def _data() -> tuple[Any, Any]:
    numbers = np.random.default_rng(3)
    return numbers.standard_normal((ROWS, WIDTH)).astype("f"), numbers.integers(0, CLASSES, ROWS)


class Bare(TensorFlowTrainer, keras.layers.Layer):  # type: ignore[misc]
    """What Keras's own tests train: a trainer that is no Model."""

    def __init__(self, inner: list[Any]) -> None:
        keras.layers.Layer.__init__(self)
        TensorFlowTrainer.__init__(self)
        self.inner = inner

    def call(self, x: Any) -> Any:
        for each in self.inner:
            x = each(x)
        return x


def _model(batch_norm: bool = False, form: str = "built") -> Any:
    keras.utils.set_random_seed(5 + rt.rank())  # what is the same afterwards was made the same
    layers: list[Any] = [keras.Input((WIDTH,)), keras.layers.Dense(16, activation="tanh")]
    if batch_norm:
        layers.append(keras.layers.BatchNormalization())
    layers.append(keras.layers.Dense(CLASSES))
    if form == "built":
        return keras.Sequential(layers)
    return (Bare if form == "bare" else keras.Sequential)(layers[1:])


def _optimizer(name: str) -> Any:
    makers = {
        "sgd": lambda: keras.optimizers.SGD(0.1, momentum=0.9),
        "adam": lambda: keras.optimizers.Adam(0.01),
        "global_clipnorm": lambda: keras.optimizers.SGD(0.1, global_clipnorm=0.05),
        "accumulate": lambda: keras.optimizers.Adam(0.01, gradient_accumulation_steps=2),
        "ema": lambda: keras.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.8),
    }
    return makers[name]()


def _flat(variables: Any) -> list[float]:
    return [float(x) for each in variables for x in np.ravel(tf.convert_to_tensor(each))]


def fits(each: list[dict[str, Any]]) -> Any:
    """Several models, one after the other."""
    return [fit(**arguments) for arguments in each]


def fit(
    optimizer: str,
    eager: bool = False,
    compression: str | None = None,
    bucket_bytes: Any = "auto",
    batch_norm: bool = False,
    epochs: int = 2,
    at_once: int = 1,
    watch_links: bool = False,
    validate: bool = False,
    compiled: bool = False,
    form: str = "built",
) -> Any:
    """The weights after training, the logs, and what the model makes of all data."""
    run = rt.init()
    model = _model(batch_norm, form)
    wire: Any = compression
    sync = rt.sync.AllReduce(bucket_bytes=bucket_bytes, compression=wire)
    model.compile(
        rt.distribute(_optimizer(optimizer), sync),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        run_eagerly=eager,
        steps_per_execution=at_once,
        jit_compile=compiled,
    )
    data = _data()
    history = model.fit(
        *rt.shard(data),
        batch_size=16 // run.size,  # alone, a process takes whole batches
        shuffle=False,
        epochs=epochs,
        validation_data=data if validate else None,
        callbacks=rt.callbacks(watch_links=watch_links),
        verbose=2,
    )
    return {
        "evaluated": model.evaluate(*data, verbose=0) if validate else [],
        "predicted": model.predict(data[0], verbose=0).tolist() if validate else [],
        "weights": _flat(model.trainable_variables),
        "state": _flat(model.non_trainable_variables),
        "logs": dict(history.history),
        "steps": int(model.optimizer.iterations.numpy()),
    }


class OwnStep(keras.Sequential):  # type: ignore[misc]
    """A model with a training step of its own."""

    def train_step(self, data: Any) -> Any:
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x, y, self(x, training=True))
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        return {"loss": loss}


def parts(jit_compile: Any, gpu: bool = False, own: bool = False) -> Any:
    """What XLA compiled and did not compile in a step, and the weights after an epoch."""
    context = importlib.import_module("tensorflow.python.eager.context").context()
    rt.init()
    if gpu:  # Keras takes "auto" for True
        devices = [*tf.config.list_physical_devices(), Namespace(name="GPU:0", device_type="GPU")]
        vars(tf.config)["list_physical_devices"] = lambda kind=None: devices
    model = _model()
    if own:
        model = OwnStep([keras.Input((WIDTH,)), *model.layers])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(rt.distribute(_optimizer("sgd")), loss=loss, jit_compile=jit_compile)
    context.enable_run_metadata()
    model.fit(*rt.shard(_data()), batch_size=8, epochs=1, shuffle=False, callbacks=rt.callbacks())
    graphs = context.export_run_metadata().partition_graphs
    operations = [node.op for graph in graphs for node in graph.node]
    return {
        "clusters": operations.count("_XlaRun"),
        "between": sorted({op for op in operations if op.startswith("Rdmatensor")}),
        "weights": _flat(model.trainable_variables),
    }


def watched() -> Any:
    """Training that finds its links slow after each epoch, and training without looking."""
    from rdmatensor.topology import Link, Member, Topology, watch

    watch.SLOWER = 0.0
    used, use = [], watch.use

    def counted(*arguments: Any) -> Any:
        used.append(use(*arguments))
        return used[-1]

    vars(watch)["use"] = counted
    ends = [("a", "b"), ("b", "a")]
    links = tuple(Link(*each, 1e9) for each in ends)
    run = rt.init(topology=Topology("pair", (Member("a"), Member("b")), links))
    looks = fit("sgd", epochs=3, watch_links=True)
    count = len(used)
    model = _model()
    model.compile(rt.distribute(_optimizer("sgd"), rt.sync.PullGossip()), loss="mse")
    try:
        model.fit(
            np.zeros((8, WIDTH)), np.zeros((8, CLASSES)), callbacks=rt.callbacks(watch_links=True)
        )
        text = ""
    except UsageError as error:
        text = str(error)
    run.topology = None
    try:
        rt.callbacks(watch_links=True)
    except UsageError as error:
        text += str(error)
    return [looks, count, fit("sgd", epochs=3), text]


def measured(traces: str) -> Any:
    """What is counted while rank 1 comes late to each step, and traced; as statistics and as metrics."""
    run = rt.init()
    import rdmatensor.metrics
    from rdmatensor._tools import watching

    model = _model()
    model.compile(rt.distribute("sgd", rt.sync.AllReduce(bucket_bytes=1)), loss="mse")
    data = np.zeros((8, WIDTH), "f"), np.zeros((8, CLASSES), "f")

    class Late(keras.callbacks.Callback):  # type: ignore[misc]
        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            time.sleep(0.05 * run.rank)

    model.fit(*data, batch_size=4, epochs=3, callbacks=[*rt.callbacks(), Late()], verbose=2)
    trace = Path(traces, f"{run.rank}.json")
    with rt.trace(trace):
        model.train_on_batch(*data)
    endpoint = rdmatensor.metrics.serve(0)
    assert endpoint is not None
    reading = watching.read(endpoint.address)
    view = watching.view(endpoint.address, reading, reading)
    events = json.loads(trace.read_text())["traceEvents"]
    served = re.findall(r"^# HELP (rdmatensor_train_\w+)", watching.fetch(endpoint.address), re.M)
    return [rt.statistics(), view.training, events, served]


def embeddings() -> Any:
    """With rows that all processes use, and with others."""
    return [embedding(True), embedding(False)]


def embedding(share: bool) -> Any:
    """A model with a table, whose gradients are rows."""
    run = rt.init()
    keras.utils.set_random_seed(7)
    model = keras.Sequential(
        [
            keras.Input((3,), dtype="int32"),
            keras.layers.Embedding(20, 4),
            keras.layers.Flatten(),
            keras.layers.Dense(1),
        ]
    )
    model.compile(rt.distribute(keras.optimizers.SGD(0.5)), loss="mse")
    numbers = np.random.default_rng(1)
    rows = numbers.integers(0, 3 if share else 20, (8, 3))
    target = numbers.standard_normal((8, 1)).astype("f")
    model.fit(*rt.shard((rows, target)), batch_size=8 // run.size, epochs=3, shuffle=False,
              callbacks=rt.callbacks(), verbose=0)  # fmt: skip
    return _flat(model.trainable_variables)


def rows() -> Any:
    """Each process has another number of rows, the last none."""
    run = rt.init()
    from rdmatensor.train.backend.tensorflow import gradients

    count = run.size - 1 - run.rank
    mine = tf.IndexedSlices(
        tf.ones([count, 2]) * (run.rank + 1.0), tf.range(count, dtype=tf.int64), tf.constant([5, 2])
    )
    (mean,) = gradients.mean(run, [mine], name="rows")
    return tf.convert_to_tensor(mean).numpy().tolist()


def infinities() -> Any:
    """With the policy of all models, and with one of the model."""
    found = [infinity(True), infinity(False)]
    keras.config.set_dtype_policy("float32")
    return found


def infinity(layer_policy: bool) -> Any:
    """float16 with an overflow in one process: all skip the step and halve the scale."""
    run = rt.init()
    policy = "mixed_float16"
    if not layer_policy:
        keras.config.set_dtype_policy(policy)
    keras.utils.set_random_seed(2)
    inputs = keras.Input((2,))
    outputs = keras.layers.Dense(1, dtype=policy)(inputs)
    model = keras.Model(inputs, outputs)
    if layer_policy:
        model.dtype_policy = keras.dtype_policies.get(policy)
    model.compile(rt.distribute(keras.optimizers.SGD(0.01)), loss="mse")
    data = np.full((8, 2), 0.01, "f")  # gradients fit into float16 although they are scaled
    if run.rank == 1:
        data[4] = np.inf  # of the second batch
    model.fit(
        data,
        np.full((8, 1), 0.01, "f"),
        batch_size=4,
        shuffle=False,
        callbacks=rt.callbacks(),
        verbose=0,
    )
    optimizer = model.optimizer
    return {
        "weights": _flat(model.trainable_variables),
        "scale": float(optimizer.dynamic_scale.numpy()),
        "steps": int(optimizer.inner_optimizer.iterations.numpy()),
    }


def tape() -> Any:
    """A training loop by hand."""
    run = rt.init()
    model = _model()
    model.build((None, WIDTH))
    rt.broadcast_variables(model.variables)
    optimizer = keras.optimizers.SGD(0.1)
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    @tf.function
    def step(x: Any, y: Any) -> Any:
        with rt.GradientTape() as tape:
            loss = loss_of(y, model(x, training=True))
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
        return loss

    x, y = rt.shard(_data())
    for _ in range(3):
        step(x, y)
    return [run.size, _flat(model.trainable_variables)]


def shards(count: int, known: bool) -> Any:
    """The elements that this process gets. It would wait for the others for ever."""
    rt.init(timeout=float("inf"))
    data = tf.data.Dataset.range(count).map(lambda i: {"a": i, "b": (i * 2, [i])})
    if not known:
        data = data.filter(lambda _: True)
    return [[int(each["a"]), int(each["b"][0])] for each in rt.shard(data)]


def alone() -> Any:
    """One process is trained by Keras itself."""
    rt.init()
    optimizer = keras.optimizers.Adam()
    return [rt.size(), type(rt.distribute(optimizer)) is keras.optimizers.Adam]


def resume(backup: str, stop_after: int | None, epochs: int = 4) -> Any:
    """Trains with a backup; may end without a goodbye after some epochs."""
    run = rt.init()
    model = _model(batch_norm=True)
    model.compile(
        rt.distribute(keras.optimizers.Adam(0.01)),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )

    class Stop(keras.callbacks.Callback):  # type: ignore[misc]
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            if epoch == stop_after:
                print(json.dumps("killed"), flush=True)
                os._exit(9)

    history = model.fit(
        *rt.shard(_data()),
        batch_size=16 // run.size,
        shuffle=False,
        epochs=epochs,
        callbacks=[*rt.callbacks(backup=backup), Stop()],
        verbose=0,
    )
    return {"losses": history.history["loss"], "weights": _flat(model.trainable_variables)}


def _sync(text: str) -> Any:
    """What a program would write: "LocalSGD(period=8)"."""
    return eval(text, {name: getattr(rt.sync, name) for name in rt.sync.__all__})


def synced(each: list[str], epochs: int = 2) -> Any:
    """Weights after training with plain SGD, by synchronizer."""
    run = rt.init()
    found = {}
    for text in each:
        model = _model()
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(rt.distribute(keras.optimizers.SGD(0.1), _sync(text)), loss=loss)
        model.fit(*rt.shard(_data()), batch_size=16 // run.size, shuffle=False, epochs=epochs,
                  callbacks=rt.callbacks(), verbose=0)  # fmt: skip
        found[text] = _flat(model.trainable_variables)
    return found


def learn(each: list[str], epochs: int, broken: bool = False) -> Any:
    """The accuracy on all digits where each process has seen some classes only, and the weights."""
    from sklearn.datasets import load_digits

    from rdmatensor.train.sync import local_sgd

    run = rt.init()
    if broken:
        local_sgd.mean = lambda *_: None  # type: ignore
        local_sgd.average = lambda *_: False
    digits = load_digits()
    x, y = (digits.data / 16.0 - 0.5).astype("f"), digits.target
    rows = np.flatnonzero(y[:1400] % run.size == run.rank)[: 1280 // run.size]
    found: dict[str, Any] = {}
    for text in each:
        keras.utils.set_random_seed(5)
        model = keras.Sequential(
            [keras.Input((64,)), keras.layers.Dense(32, "relu"), keras.layers.Dense(10)]
        )
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(rt.distribute(keras.optimizers.SGD(0.3), _sync(text)), loss=loss)
        try:
            model.fit(
                x[rows], y[rows], batch_size=32, epochs=epochs, callbacks=rt.callbacks(), verbose=0
            )
        except UsageError as error:
            found[text] = [str(error)]
            continue
        right = np.argmax(model.predict_on_batch(x[1400:]), -1) == y[1400:]
        found[text] = [float(right.mean()), _flat(model.trainable_variables)]
    return found


def save(path: str) -> Any:
    """A model whose optimizer is distributed, saved by rank 0."""
    run = rt.init()
    model = _model()
    model.compile(rt.distribute("adam"), loss="mse")
    data = np.ones((8, WIDTH), "f"), np.ones((8, CLASSES), "f")
    model.fit(*data, batch_size=4, callbacks=rt.callbacks(), verbose=0)
    if run.rank == 0:
        model.save(path)
    rt.ops.barrier()
    return [type(model.optimizer).__name__, _flat(model.trainable_variables)]


def again() -> Any:
    """Leaves the group and joins another one."""
    run = rt.init()
    first = float(rt.ops.all_reduce(tf.constant(1.0 + run.rank), op="sum"))
    function = tf.function(lambda: rt.ops.all_reduce(tf.constant(1.0), op="sum"))
    handle = run.handle
    function()
    model = _model()  # processes that die could come back to this training
    model.compile(rt.distribute("sgd", rt.sync.PullGossip()), loss="mse")
    data = np.zeros((8, WIDTH), "f"), np.zeros((8, CLASSES), "f")
    model.fit(*data, verbose=0, callbacks=rt.callbacks())
    if run.rank == 0:
        time.sleep(1.0)  # the other one is back before this one has left
    rt.shutdown()
    try:
        run._handle = handle
        function()
        says = ""
    except tf.errors.OpError as error:
        says = str(error)
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    run = rt.init(rank=run.rank, size=run.size, root=f"{host}:{port}")
    return [first, float(rt.ops.all_reduce(tf.constant(10.0 + run.rank), op="sum")), says]


def compiled() -> Any:
    """XLA cannot compile the operations."""
    rt.init()
    try:
        tf.function(rt.ops.all_reduce, jit_compile=True)(tf.zeros([2]))
    except Exception as error:
        return str(error)
    return "no error"


def warmup() -> Any:
    """The learning rate of each step."""
    rt.init()
    model = _model()
    model.compile(rt.distribute(keras.optimizers.SGD(0.8)), loss="mse")
    rates = []

    class Look(keras.callbacks.Callback):  # type: ignore[misc]
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            rates.append(float(self.model.optimizer.learning_rate.numpy()))

    data = np.zeros((16, WIDTH), "f"), np.zeros((16, CLASSES), "f")
    model.fit(
        *data, batch_size=4, epochs=3, callbacks=[*rt.callbacks(warmup_epochs=2), Look()], verbose=0
    )
    return rates


def main() -> None:
    faulthandler.register(signal.SIGUSR1)  # which asks for what each thread does
    case, arguments = sys.argv[1], json.loads(sys.argv[2])
    result = globals()[case](**arguments)
    print("\n" + json.dumps(result), flush=True)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))
    main()

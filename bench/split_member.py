# SPDX-License-Identifier: Apache-2.0
"""A process of bench_split.py: trains VGG-A, whole or with its dense layers cut.

Memory is that of the real network. Times are those of one that sleeps: it takes the time that a device of a
given speed would compute, one thing at a time, while all that travels does so, a LESS-th of it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import rdmatensor.train as rt
from member import serve_steps

LESS = 8
# Features in and out, and by how much the image is smaller than the first one.
CONVOLUTIONS = [
    *((3, 64, 1), (64, 128, 2), (128, 256, 4), (256, 256, 4)),
    *((256, 512, 8), (512, 512, 8), (512, 512, 16), (512, 512, 16)),
]
WIDTH = 4096
WHOLE, SPLIT = "whole", "split"


def vgg(pixels: int, classes: int) -> Any:
    """VGG-A."""
    layers = keras.layers
    steps: list[Any] = [keras.Input((pixels, pixels, 3))]
    following = [less for _, _, less in CONVOLUTIONS[1:]] + [32]
    for (_, features, less), after in zip(CONVOLUTIONS, following, strict=True):
        steps.append(layers.Conv2D(features, 3, padding="same", activation="relu"))
        if after != less:
            steps.append(layers.MaxPooling2D())
    dense = [layers.Dense(WIDTH, "relu"), layers.Dense(WIDTH, "relu"), layers.Dense(classes)]
    return keras.Sequential([*steps, layers.Flatten(), *dense])


def _kernel_says(name: str, file: str = "status") -> int:
    lines = Path("/proc/self", file).read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))


def _share() -> int:
    """Bytes of this process, with its share of the pages that it shares with others."""
    return _kernel_says("Pss:", "smaps_rollup")


class _Watch(keras.callbacks.Callback):  # type: ignore[misc]
    most = 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.most = max(self.most, _share())


def memory(way: str, pixels: int, classes: int, batch: int, steps: int) -> dict[str, Any]:
    """Bytes of all variables, and of the process at most: while it makes the model, and while it trains."""
    before = _share()
    keras.utils.set_random_seed(1)
    model = vgg(pixels, classes)
    if way == SPLIT:
        model = rt.split(model)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(rt.distribute(keras.optimizers.SGD(0.01, momentum=0.9)), loss=loss)
    making = _kernel_says("VmHWM:")
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    x = np.zeros((steps * batch, pixels, pixels, 3), "f")
    y = np.zeros(steps * batch, "i")
    watch = _Watch()
    model.fit(x, y, batch_size=batch, callbacks=[*rt.callbacks(), watch], verbose=0)
    variables = [*model.variables, *model.optimizer.variables]
    return {
        "variables": sum(int(np.prod(v.shape)) * v.value.dtype.size for v in variables),
        "before": before,
        "making": making,
        "training": _kernel_says("VmHWM:"),
        "share": watch.most,
    }


_device = threading.Lock()


def _after(seconds: float, value: Any) -> Any:
    """The value, when the device has computed for so long."""

    def compute(x: Any) -> Any:
        with _device:
            time.sleep(seconds)
        return x

    return tf.ensure_shape(tf.numpy_function(compute, [value], value.dtype), value.shape)


class Convolution(keras.layers.Layer):  # type: ignore[misc]
    """Has weights and gradients, and sleeps."""

    def __init__(self, shape: tuple[int, int], seconds: float) -> None:
        super().__init__()
        self._kernel_shape, self._seconds = (3, 3, *shape), seconds

    def build(self, _: Any) -> None:
        self.kernel = self.add_weight(shape=self._kernel_shape, initializer="zeros")

    def call(self, x: Any) -> Any:
        @tf.custom_gradient
        def pass_on(x: Any, kernel: Any) -> Any:
            def gradient(dy: Any) -> Any:
                now = _after(2 * self._seconds, dy)
                return now, tf.fill(kernel.shape, now[0, 0])

            return _after(self._seconds, x), gradient

        return pass_on(x, tf.convert_to_tensor(self.kernel))


def _sleeping_product(speed: float, real: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def product(inputs: Any, kernel: Any) -> Any:
        if inputs.shape[0] is None:  # Keras asks for shapes
            return real(inputs, kernel)
        inputs, kernel = tf.convert_to_tensor(inputs), tf.convert_to_tensor(kernel)
        seconds = 2 * inputs.shape[0] * int(np.prod(kernel.shape)) * LESS / speed

        @tf.custom_gradient
        def pass_on(inputs: Any, kernel: Any) -> Any:
            def gradient(dy: Any) -> Any:
                first = _after(seconds, dy[0, 0])  # goes on to other processes during the second
                second = _after(seconds, first)
                return tf.fill(inputs.shape, first), tf.fill(kernel.shape, second)

            now = _after(seconds, inputs[0, 0])
            return tf.fill([inputs.shape[0], kernel.shape[1]], now), gradient

        return pass_on(inputs, kernel)

    return product


def program(way: str, pixels: int, classes: int, batch: int, speed: float) -> Callable[[], object]:
    """A step of VGG-A that sleeps.

    What travels is a LESS-th: of the weights of convolutions, and of activations.
    """
    keras.utils.set_random_seed(1)  # all begin with the same weights
    sleeping = _sleeping_product(speed, tf.matmul)
    keras.ops.matmul = keras.src.ops.matmul = sleeping
    layers = keras.layers
    steps: list[Any] = [keras.Input((1,))]
    for ifm, ofm, less in CONVOLUTIONS:
        flops = 2 * 9 * ifm * ofm * (pixels // less) ** 2 * batch
        steps.append(Convolution((max(ifm // LESS, 1), ofm), flops / speed))
    features = 512 * (pixels // 32) ** 2 // LESS
    steps += [layers.RepeatVector(features), layers.Flatten()]
    steps += [layers.Dense(WIDTH, "relu", name="fc1"), layers.Dense(WIDTH // LESS, name="fc2")]
    head = layers.Dense(max(classes // LESS, 1), name="head")
    model = keras.Sequential([*steps, head])
    optimizer: Any = keras.optimizers.SGD(0.0)
    if way == SPLIT:
        cut = {"fc1": "column", "fc2": "row"}
        if WIDTH * classes >= 1 << 20:  # as split() decides
            cut["head"] = "row"
        model = rt.split(model, layers=cut)  # type: ignore[arg-type]
    if way != "alone":
        optimizer = rt.distribute(optimizer)
    variables, x = model.trainable_variables, tf.ones([batch, 1])
    optimizer.build(variables)

    def step() -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(x, training=True))
        optimizer.apply(tape.gradient(loss, variables), variables)
        return loss

    compiled = tf.function(step)
    compiled()
    return compiled  # type: ignore[no-any-return]


if __name__ == "__main__":
    rt.init(timeout=200)
    serve_steps(program, before=lambda: rt.ops.barrier(), memory=memory)

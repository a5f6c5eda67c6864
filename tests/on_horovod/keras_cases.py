# SPDX-License-Identifier: Apache-2.0
"""What Horovod's optimizers, callbacks and load_model do in two processes. Prints OK at the end."""

import sys

import keras
import numpy as np
import tensorflow as tf

import rdmatensor.horovod.keras as hvd_keras
import rdmatensor.horovod.tensorflow.keras as hvd

hvd.init()
r = hvd.rank()
assert hvd_keras.DistributedOptimizer is hvd.DistributedOptimizer and hvd_keras.callbacks


def stepped(count=4, **options):
    """What SGD(1) has added up of gradients rank + 1, step by step."""
    v = keras.Variable([0.0])
    opt = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), **options)
    found = []
    step = tf.function(lambda: opt.apply([tf.constant([r + 1.0])], [v]))
    for _ in range(count):
        step()
        found.append(-float(v.numpy()[0]))
    return found


assert stepped() == [1.5, 3.0, 4.5, 6.0]
assert stepped(op=hvd.Sum) == [3.0, 6.0, 9.0, 12.0]
assert stepped(gradient_predivide_factor=2.0) == [1.5, 3.0, 4.5, 6.0]
assert stepped(backward_passes_per_step=2) == [0.0, 3.0, 3.0, 6.0]
assert stepped(backward_passes_per_step=2, average_aggregated_gradients=True) == [
    0.0,
    1.5,
    1.5,
    3.0,
]
only = hvd.add_process_set([0])
assert stepped(process_set=only) == [(r + 1) * each for each in (1.0, 2.0, 3.0, 4.0)]

x, y = np.random.default_rng(r).random((32, 4)), np.full((32, 1), float(r))


def made(*shape, **options):
    keras.utils.set_random_seed(1 + r)
    model = keras.Sequential([*shape, keras.layers.Dense(1), keras.layers.Dense(1)])
    model.compile(
        hvd.DistributedOptimizer(keras.optimizers.SGD(0.1, momentum=0.9), **options), "mse"
    )
    return model


rates: list[float] = []
velocities: list[float] = []


class Watch(keras.callbacks.Callback):
    """Notes rates and velocities."""

    def on_train_batch_begin(self, batch, logs=None):
        rates.append(float(self.model.optimizer.learning_rate.numpy()))
        velocities.append(self.model.optimizer.momentums[0].numpy().sum())

    def on_train_batch_end(self, batch, logs=None):
        velocities.append(self.model.optimizer.momentums[0].numpy().sum())


best = hvd.callbacks.BestModelCheckpoint(monitor="loss", filepath=f"{sys.argv[1]}/best_{r}.keras")
model = made(keras.Input((4,)))
history = model.fit(x, y, batch_size=8, epochs=3, verbose=0, callbacks=[
    hvd.callbacks.BroadcastGlobalVariablesCallback(0), hvd.callbacks.MetricAverageCallback(),
    hvd.callbacks.LearningRateWarmupCallback(0.1, warmup_epochs=2, verbose=1), Watch(), best,
])  # fmt: skip
# From half the rate to the full one in 8 steps.
np.testing.assert_allclose(
    rates, [*(0.05 * (1 + (i + 1) / 8) for i in range(8)), *[0.1] * 4], rtol=1e-5
)
# Between steps a velocity changes as the rate does.
for i in range(1, 12):
    np.testing.assert_allclose(
        velocities[2 * i], velocities[2 * i - 1] * rates[i] / rates[i - 1], rtol=1e-4
    )
for values in (history.history["loss"], model.get_weights()[0].ravel()):
    np.testing.assert_allclose(hvd.broadcast(np.array(values), 1), values)

# A model that its first step builds is copied after that.
unbuilt = made()
unbuilt.fit(x, y, verbose=0, callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)])
np.testing.assert_array_equal(hvd.broadcast(unbuilt.get_weights()[0], 1), unbuilt.get_weights()[0])

# A saved model goes on where it was, in all processes.
again = hvd.load_model(f"{sys.argv[1]}/best_{r}.keras")
again.fit(x, y, verbose=0)
np.testing.assert_array_equal(hvd.broadcast(again.get_weights()[0], 1), again.get_weights()[0])
assert type(again.optimizer).__name__ == "SGD" and int(again.optimizer.iterations) == 13


# Rank 0 loads a model, and the others make one, whose layers then have other names.
class Descent(keras.optimizers.SGD):
    """An optimizer of the program's own."""


def wrapped():
    keras.utils.set_random_seed(1 + r)
    inner, recurrent = keras.Sequential([keras.layers.Dense(3)]), keras.layers.LSTM(1)
    layers = [keras.layers.TimeDistributed(inner), keras.layers.Bidirectional(recurrent)]
    model = keras.Sequential([keras.Input((4, 4)), *layers, keras.layers.Dense(1)])
    model.compile(
        hvd.DistributedOptimizer(Descent(0.1, momentum=0.9), backward_passes_per_step=2), "mse"
    )
    return model


path = f"{sys.argv[1]}/wrapped_{r}.keras"
resumed = wrapped()
cubes = np.random.default_rng(r).random((32, 4, 4))
resumed.fit(cubes, y, verbose=0)
resumed.save(path)
resumed = wrapped() if r else hvd.load_model(path, custom_optimizers=[Descent])
resumed.fit(cubes, y, verbose=0, callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)])
for each in (*resumed.weights, *resumed.optimizer.variables):
    if "seed" not in each.path:
        np.testing.assert_array_equal(hvd.broadcast(each.numpy(), 1), each.numpy())
try:
    hvd.load_model(path, custom_objects={"Descent": lambda **settings: Descent(**settings)})
except ValueError as error:
    assert "give the class" in str(error)
else:
    raise AssertionError("a function is no optimizer")

# Sums of passes stay sums.
loaded = hvd.load_model(path, custom_optimizers=[Descent]).optimizer
means = hvd.load_model(path, custom_objects={"Descent": Descent}, average_aggregated_gradients=True)
for optimizer, factor in ((loaded, 2.0), (means.optimizer, 1.0)):
    (gradient,) = optimizer._clip_gradients([tf.ones([1])])
    assert float(gradient[0]) == factor

# Another model in one process is an error in both, not a sum.
other = made() if r else keras.Sequential([keras.layers.Dense(2, name="b"), keras.layers.Dense(1)])
if not r:
    other.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
try:
    other.fit(x, y, verbose=0)
except tf.errors.InvalidArgumentError as error:
    assert "disagree" in str(error)
else:
    raise AssertionError("models differ, and nobody said so")
try:
    hvd.broadcast_global_variables(0)
except RuntimeError as error:
    assert "BroadcastGlobalVariablesCallback" in str(error)
print("OK", flush=True)

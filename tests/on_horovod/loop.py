# SPDX-License-Identifier: Apache-2.0
"""Horovod's example of a loop by hand, on made-up data. With "die" as second argument, rank 1 is killed."""

import os
import signal
import sys

import numpy as np
import tensorflow as tf

import rdmatensor.horovod.tensorflow as hvd
from rdmatensor.horovod.reductions import HorovodInternalError

# Horovod: initialize Horovod.
hvd.init()
numbers = np.random.default_rng(1)
rows, labels = numbers.random((64, 6), np.float32), numbers.integers(0, 3, 64)
batch = 16 // hvd.size()
mine = np.arange(64).reshape(-1, hvd.size(), batch)[:, hvd.rank()].ravel()
dataset = tf.data.Dataset.from_tensor_slices((rows[mine], labels[mine])).batch(batch)

tf.keras.utils.set_random_seed(1 + hvd.rank())
model = tf.keras.Sequential([tf.keras.layers.Dense(8, "tanh"), tf.keras.layers.Dense(3, "softmax")])
loss = tf.losses.SparseCategoricalCrossentropy()
# The first step, before weights are copied, changes nothing, so that one process computes the same.
opt = tf.optimizers.SGD(0.0)


@tf.function
def training_step(images, labels, first_batch):
    with tf.GradientTape() as tape:
        probs = model(images, training=True)
        loss_value = loss(labels, probs)

    # Horovod: add Horovod Distributed GradientTape.
    tape = hvd.DistributedGradientTape(tape)

    grads = tape.gradient(loss_value, model.trainable_variables)
    opt.apply_gradients(zip(grads, model.trainable_variables, strict=True))

    # Horovod: broadcast initial variable states from rank 0 to all other processes.
    if first_batch:
        hvd.broadcast_variables(model.variables, root_rank=0)
        hvd.broadcast_variables(opt.variables, root_rank=0)

    return loss_value


if sys.argv[2:] == ["die"]:
    try:
        while True:
            for number, (images, targets) in enumerate(dataset):
                if hvd.rank() == 1 and number == 2:
                    os.kill(os.getpid(), signal.SIGKILL)
                # In a function TensorFlow raises the error, in eager code we do.
                mean = hvd.allreduce(training_step(images, targets, False) * 0 + 1)
                assert float(mean) == 1.0
    except (HorovodInternalError, tf.errors.AbortedError) as error:
        assert "1" in str(error), error
    try:
        hvd.allreduce(tf.ones([2]))
    except HorovodInternalError as error:
        print(f"lost: {error}", flush=True)
    sys.exit(0)

for number, (images, targets) in enumerate(dataset):
    training_step(images, targets, number == 0)
    opt.learning_rate = 0.5
values = np.concatenate([each.numpy().ravel() for each in model.trainable_variables])
np.savez(f"{sys.argv[1]}/{hvd.size()}_{hvd.rank()}.npz", values=values)

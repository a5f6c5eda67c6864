# SPDX-License-Identifier: Apache-2.0
"""Horovod's example for Keras, line by line, on made-up pictures. Prints what the process ended with.

The first argument is the batch size of one process, the second a folder.
"""

import sys

import numpy as np
import tensorflow as tf

import rdmatensor.horovod.tensorflow.keras as hvd

# Horovod: initialize Horovod.
hvd.init()

# Horovod: pin GPU to be used to process local rank (one GPU per process)
gpus = tf.config.experimental.list_physical_devices("GPU")
for gpu in gpus:
    tf.config.experimental.set_memory_growth(gpu, True)
if gpus:
    tf.config.experimental.set_visible_devices(gpus[hvd.local_rank()], "GPU")
# TensorFlow permits this before its first operation only.
tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
)

batch = int(sys.argv[1])
numbers = np.random.default_rng(1)
images, labels = numbers.random((64, 8, 8, 1), np.float32), numbers.integers(0, 10, 64)
# Process r has the r-th part of each batch of all.
mine = np.arange(64).reshape(-1, hvd.size(), batch)[:, hvd.rank()].ravel()
dataset = tf.data.Dataset.from_tensor_slices((images[mine], labels[mine])).repeat().batch(batch)

tf.keras.utils.set_random_seed(1 + hvd.rank())  # rank 0's weights shall be everybody's
model = tf.keras.Sequential(
    [
        tf.keras.Input((8, 8, 1)),
        tf.keras.layers.Conv2D(4, [3, 3], activation="relu"),
        tf.keras.layers.MaxPooling2D(pool_size=(2, 2)),
        tf.keras.layers.Flatten(),
        tf.keras.layers.Dense(10, activation="softmax"),
    ]
)

# Horovod: adjust learning rate based on number of GPUs.
scaled_lr = 0.05 / 16 * batch * hvd.size()
opt = tf.keras.optimizers.SGD(scaled_lr, momentum=0.9)

# Horovod: add Horovod DistributedOptimizer.
opt = hvd.DistributedOptimizer(opt, backward_passes_per_step=1, average_aggregated_gradients=True)
model.compile(loss=tf.losses.SparseCategoricalCrossentropy(), optimizer=opt, metrics=["accuracy"])

callbacks = [
    hvd.callbacks.BroadcastGlobalVariablesCallback(0),
    hvd.callbacks.MetricAverageCallback(),
    hvd.callbacks.LearningRateScheduleCallback(scaled_lr, lambda epoch: 0.5**epoch),
]
# Horovod: save checkpoints only on worker 0 to prevent other workers from corrupting them.
if hvd.rank() == 0:
    callbacks.append(tf.keras.callbacks.ModelCheckpoint(sys.argv[2] + f"/{hvd.size()}.keras"))

# Horovod: write logs on worker 0.
verbose = 1 if hvd.rank() == 0 else 0
history = model.fit(
    dataset,
    steps_per_epoch=64 // batch // hvd.size(),
    callbacks=callbacks,
    epochs=3,
    verbose=verbose,
)
values = np.concatenate([each.numpy().ravel() for each in model.trainable_variables])
np.savez(
    f"{sys.argv[2]}/{hvd.size()}_{hvd.rank()}.npz",
    values=values,
    loss=history.history["loss"],
    lr=history.history["lr"],
)

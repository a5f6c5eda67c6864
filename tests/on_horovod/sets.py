# SPDX-License-Identifier: Apache-2.0
"""Sets of two of three processes, before and after shutdown(). Prints OK at the end."""

import json

import numpy as np
import tensorflow as tf

import rdmatensor.horovod.tensorflow as hvd


def same(found, expected):
    np.testing.assert_array_equal(np.asarray(found), expected)


hvd.init()
r = hvd.rank()
x, v = tf.constant([r + 1.0]), tf.Variable([1.0])
for _ in range(3):
    ends = hvd.add_process_set([2, 0])
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(v) * (r + 1)
    (gradient,) = hvd.DistributedGradientTape(tape, process_set=ends).gradient(loss, [v])
    same(gradient, [2])
    if ends.included():
        same(hvd.allreduce(x, op=hvd.Sum, process_set=ends), [4])
        same(tf.function(lambda of=ends: hvd.allgather(x, process_set=of))(), [1, 3])
        same(hvd.broadcast(x, 2, process_set=ends), [3])
        part = hvd.reducescatter(tf.range(3.0) + r, op=hvd.Sum, process_set=ends)
        same(part, [2, 4] if r == 0 else [6])
    same(hvd.allreduce(x), [2])
    # Sets go with the processes; rank 1 has been in none.
    hvd.shutdown()
    hvd.init()
same(hvd.allreduce(x), [2])
# A set that is there twice is an error, and none of them is there then.
for _ in range(2):
    try:
        hvd.init(process_sets=[hvd.ProcessSet([0, 1]), hvd.ProcessSet([0, 1])])
    except ValueError as error:
        assert "already" in str(error), error
    else:
        raise AssertionError("no error")
pair = hvd.ProcessSet([0, 1])
hvd.init(process_sets=[pair])
if pair.included():
    same(hvd.allreduce(x, op=hvd.Sum, process_set=pair), [3])
print(json.dumps("OK"), flush=True)

# SPDX-License-Identifier: Apache-2.0
"""Types, gradients and errors of Horovod's operations that programs seldom meet. Prints OK at the end."""

import json
import pickle

import numpy as np
import tensorflow as tf

import rdmatensor.horovod.tensorflow as hvd
from rdmatensor import Unsupported

hvd.init()
r, n = hvd.rank(), hvd.size()


def raises(kind, act, *words):
    try:
        act()
    except kind as error:
        assert all(word in str(error) for word in words), error
        return error
    raise AssertionError(f"no {kind}")


def same(found, expected):
    np.testing.assert_array_equal(np.asarray(found), expected)


def in_a_session(act):
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        return session.run(act())


# Sessions are refused, before and after the first operation, and spoil nothing.
same(in_a_session(hvd.rank_op), r)
for _ in range(2):
    raises(Unsupported, lambda: in_a_session(lambda: hvd.allreduce(tf.ones(2))), "tf.function")
    raises(Unsupported, lambda: in_a_session(lambda: hvd.broadcast(tf.ones(2), 0)), "tf.function")
    same(hvd.allreduce(tf.ones(2) * r), [0.5, 0.5])
    same(tf.function(lambda: hvd.allreduce(tf.ones(2) * r))(), [0.5, 0.5])

# Factors are not rounded to the 16 bits of the tensors that they scale.
for dtype in (tf.float16, tf.bfloat16):
    x = tf.cast(tf.range(1, 99), dtype)
    third = tf.cast(tf.cast(x, tf.float32) * tf.constant(0.3), dtype)
    same(hvd.allreduce(x, op=hvd.Max, prescale_factor=0.3), third)
    same(hvd.allreduce(x, op=hvd.Max, postscale_factor=0.3), third)
    same(hvd.grouped_allreduce([x, x], op=hvd.Max, prescale_factor=0.3)[1], third)
    same(hvd.reducescatter(x, op=hvd.Max, postscale_factor=0.3), tf.split(third, 2)[r])
    v = tf.Variable(x)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(v * x)
    tape = hvd.DistributedGradientTape(tape, gradient_predivide_factor=3.0)
    divided = tf.cast(tf.cast(x, tf.float32) * tf.constant(1 / 3), dtype)
    back = tf.cast(tf.cast(divided + divided, tf.float32) * tf.constant(1.5), dtype)
    same(tape.gradient(loss, v), back)

# The mean of integers is exact.
wide = tf.constant([2**60 + 1, -3 - r], tf.int64)
same(hvd.allreduce(wide), [2**60 + 1, -3])
same(hvd.grouped_allreduce([wide, wide])[1], [2**60 + 1, -3])
same(hvd.reducescatter(wide), [[2**60 + 1], [-3]][r])
for dtype in (tf.int8, tf.int16, tf.int32, tf.uint8, tf.uint16, tf.uint32, tf.uint64):
    same(hvd.allreduce(tf.constant([3, 7 + r], dtype)), [3, 7])

# Truth values and complex numbers travel where nothing is added up; what does not is refused.
same(hvd.alltoall(tf.constant([True, r == 1])), [r == 0, True])
got, counts = hvd.alltoall(tf.constant([True, False, r == 1]), [1, 2])
same(got, [False, False, False, True] if r else [True, True]), same(counts, [r + 1] * 2)
number = tf.Variable([1 + 2j * r])
double = tf.Variable(2.0 + 1j * r, dtype=tf.complex128)
hvd.broadcast_variables([number, double], 1)
same(number, [1 + 2j]), same(double, 2 + 1j)
raises(ValueError, lambda: hvd.broadcast_variables([tf.Variable(["a"])], 0), "string")
raises(ValueError, lambda: hvd.allreduce(tf.constant(["a"]), prescale_factor=2.0), "string")
found = hvd.broadcast_([tf.Variable([r]), tf.Variable([2.0 * r])], 1)
same(found[0], [1]), same(found[1], [2.0])

# Gradients from above in another type; none of Max; rows.
w = tf.Variable(tf.ones([4], tf.float64))
with tf.GradientTape() as tape:
    out, _ = hvd.alltoall(w, [1, 2])
same(tape.gradient(out, w, tf.ones([out.shape[0]])), [1, 1, 1, 0])
with tf.GradientTape() as tape:
    loss = tf.reduce_sum(hvd.reducescatter(w, op=hvd.Max))
raises(ValueError, lambda: tape.gradient(loss, w), "no gradient")
same(
    hvd.grouped_reducescatter([w], "", hvd.Compression.none, hvd.Sum, hvd.global_process_set)[0],
    [2, 2],
)

# Gradients that stay here.
layer = tf.keras.layers.Dense(1, use_bias=False)
layer.build([1, 1])
with tf.GradientTape() as tape:
    loss = layer(tf.ones([1, 1]) * (r + 1.0))[0, 0] + tf.cast(w[0], tf.float32) * (r + 1.0)
more = ("", "", hvd.Compression.none, False, hvd.Average, 1.0, 0, None, hvd.global_process_set)
tape = hvd.PartialDistributedGradientTape(tape, *more, layer)
((mine, here),), ((all_of, there),) = tape.get_local_and_global_gradients(loss, [layer.kernel, w])
assert mine is layer.kernel and all_of is w
same(here, [[(r + 1) / 2]]), same(there[:1], [1.5])

# What differs is Horovod's error, and TensorFlow's. Different results without one would be worse.
op, slices = (hvd.Sum if r else hvd.Average), tf.IndexedSlices(tf.ones([1, 1]), tf.constant([0]))


def gradients(value, **options):
    v = tf.Variable(tf.cast([1, 2], value))
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(v * v)
    return hvd.DistributedGradientTape(tape, **options).gradient(loss, [v])


for act in (
    lambda: hvd.allreduce(tf.ones([2]), op=op),
    lambda: hvd.allreduce(tf.ones([2], tf.float16), op=op),
    lambda: hvd.allreduce(tf.ones([2], tf.int32), op=op),
    lambda: hvd.allreduce(slices, op=op),
    lambda: hvd.grouped_allreduce([tf.ones([2], tf.int32)] * 2, op=op),
    lambda: hvd.reducescatter(tf.ones([2]), op=op),
    lambda: hvd.allreduce(tf.ones([2]), op=hvd.Sum, prescale_factor=1.0 + r),
    lambda: hvd.allreduce(tf.ones([2]), op=hvd.Sum, postscale_factor=1.0 + r),
    lambda: hvd.reducescatter(tf.ones([2]), op=hvd.Sum, prescale_factor=1.0 + r),
    lambda: gradients(tf.float32, op=op),
    lambda: gradients(tf.float16, op=op),
    lambda: gradients(tf.float32, gradient_predivide_factor=2.0 + r),
    lambda: gradients(tf.float32, **({"op": op} if r else {"gradient_predivide_factor": 2.0})),
    lambda: hvd.allreduce(tf.ones([2 + r])),
    lambda: hvd.grouped_allreduce([tf.ones([2 + r]), tf.ones([2])]),
    lambda: hvd.allgather_object(1, name=f"name {r}"),
    lambda: hvd.broadcast_variables([tf.Variable(tf.ones([2 + r]))], 0),
    lambda: hvd.barrier() if r else hvd.allreduce(tf.ones([2])),
    # Its root has to wait for the others.
    lambda: hvd.broadcast(tf.ones([2 + r]), 0),
    lambda: hvd.broadcast(tf.ones([2] * (1 + r)), 0),
    lambda: hvd.broadcast(tf.ones([2], [tf.int32, tf.float32][r]), 0),
    lambda: hvd.broadcast(tf.ones([2]), r),
):
    error = raises(tf.errors.FailedPreconditionError, act, "disagree")
    assert isinstance(error, tf.errors.InvalidArgumentError)
    copied = pickle.loads(pickle.dumps(error))
    assert type(copied) is hvd.Disagreement and copied.message == error.message
error = raises(tf.errors.InvalidArgumentError, lambda: hvd.alltoall(tf.ones([3]), [2, 2]), "splits")
assert not isinstance(error, hvd.Disagreement)
print(json.dumps("OK"), flush=True)

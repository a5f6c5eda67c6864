# SPDX-License-Identifier: Apache-2.0
"""Horovod's operations in two processes, against numpy. Prints OK at the end."""

import json
from typing import Any

import numpy as np
import tensorflow as tf

import rdmatensor.horovod
import rdmatensor.horovod.tensorflow as hvd
from rdmatensor import Unsupported

hvd.init()
r, n = hvd.rank(), hvd.size()
assert (n, hvd.local_rank(), hvd.local_size(), hvd.cross_rank(), hvd.cross_size()) == (
    2,
    r,
    2,
    0,
    1,
)
assert hvd.is_homogeneous() and hvd.is_initialized() and not hvd.mpi_built()


def same(found, expected):
    np.testing.assert_allclose(np.asarray(found), expected, rtol=1e-3)
    assert np.asarray(found).shape == np.shape(expected)


def raises(kind, act, *words):
    try:
        act()
    except kind as error:
        assert all(word in str(error) for word in words), error
    else:
        raise AssertionError(f"no {kind}")


x = tf.constant([1.0, 2.0, 4.0]) * (r + 1)
integers = tf.constant([3, -4]) + r
ragged = tf.fill([2 * r + 1, 2], float(r))
slices = tf.IndexedSlices(tf.fill([r + 1, 2], r + 1.0), tf.range(r + 1), tf.constant([5, 2]))
for wrap in (lambda f: f, tf.function):
    call = wrap(lambda: [
        hvd.allreduce(x), hvd.allreduce(x, average=False), hvd.allreduce(x, op=hvd.Min),
        hvd.allreduce(x, op=hvd.Max), hvd.allreduce(x, op=hvd.Product), hvd.allreduce(integers),
        hvd.allreduce(x, op=hvd.Sum, prescale_factor=2.0, postscale_factor=0.25),
        hvd.allreduce(integers, op=hvd.Sum, prescale_factor=0.5),
        hvd.allreduce(x, compression=hvd.Compression.fp16),
    ])  # fmt: skip
    one = np.array([1.0, 2.0, 4.0])
    for found, expected in zip(call(), [
        1.5 * one, 3 * one, one, 2 * one, 2 * one**2, [3, -3], 1.5 * one, [3, -3], 1.5 * one
    ], strict=True):  # fmt: skip
        same(found, expected)
    a, b, c = wrap(lambda: hvd.grouped_allreduce([x, integers, x[:1]], op=hvd.Sum))()
    same(a, 3 * one), same(b, [7, -7]), same(c, [3.0])
    same(wrap(lambda: hvd.allgather(ragged))(), [[0, 0], [1, 1], [1, 1], [1, 1]])
    same(wrap(lambda: hvd.allgather(tf.zeros([0, 2]) if r else ragged))(), [[0, 0]])
    same(wrap(lambda: hvd.allgather(tf.constant([r == 1])))(), [False, True])
    got, counts = wrap(lambda: hvd.alltoall(tf.range(4) + 10 * r, splits=[1 + r, 2]))()
    same(got, [[0, 10, 11], [1, 2, 12, 13]][r]), same(counts, [[1, 2], [2, 2]][r])
    same(wrap(lambda: hvd.alltoall(tf.range(4) + 10 * r))(), [[0, 1, 10, 11], [2, 3, 12, 13]][r])
    same(wrap(lambda: hvd.reducescatter(tf.range(5.0) + r))(), [[0.5, 1.5, 2.5], [3.5, 4.5]][r])
    same(wrap(lambda: hvd.reducescatter(tf.range(4.0), op=hvd.Sum))(), [[0, 2], [4, 6]][r])
    same(wrap(lambda: hvd.broadcast(x, 1))(), 2 * one)
    mean = wrap(lambda: hvd.allreduce(slices))()
    same(tf.convert_to_tensor(mean)[:3], [[1.5, 1.5], [1, 1], [0, 0]])
    wrap(hvd.barrier)()

GRADIENTS = {  # of the sum of results times (rank + 1), as Horovod defines them
    "average": (lambda v: hvd.allreduce(v), [1.5] * 4),
    "sum": (lambda v: hvd.allreduce(v, op=hvd.Sum), [3.0] * 4),
    "group": (lambda v: tf.add_n(hvd.grouped_allreduce([v, v], op=hvd.Sum)), [6.0] * 4),
    "gather": (lambda v: hvd.allgather(v[: r + 2]), [[1.5, 1.5, 0, 0], [1.5, 1.5, 1.5, 0]][r]),
    "broadcast": (lambda v: hvd.broadcast(v, 1), [[0.0] * 4, [1.5] * 4][r]),
    "alltoall": (lambda v: hvd.alltoall(v, splits=[1, 2])[0], [1.0, 2.0, 2.0, 0.0]),
    "scatter": (lambda v: hvd.reducescatter(v, op=hvd.Sum), [2.0, 2.0, 4.0, 4.0]),
    "mean scatter": (lambda v: hvd.reducescatter(v), [1.0, 1.0, 2.0, 2.0]),
}
for name, (act, expected) in GRADIENTS.items():
    for wrap in (lambda f: f, tf.function):

        def of(value, act=act):
            with tf.GradientTape() as tape:
                tape.watch(value)
                loss = tf.reduce_sum(act(value)) * (r + 1)
            return tape.gradient(loss, value)

        np.testing.assert_allclose(wrap(of)(tf.ones([4])), expected, err_msg=name)

# A tape by hand, with options.
v = tf.Variable([1.0, 2.0])
table = tf.Variable(tf.ones([4, 2]))


def gradient(**options):
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(v * v) * (r + 1) + tf.reduce_sum(tf.gather(table, [r, 3]))
    tape = hvd.DistributedGradientTape(tape, **options)
    return [tf.convert_to_tensor(each) for each in tape.gradient(loss, [v, table])]


rows = np.array([[1.0, 1], [1, 1], [0, 0], [2, 2]])
ways: list[tuple[dict[str, Any], float]] = [
    ({}, 0.5), ({"op": hvd.Sum}, 1), ({"gradient_predivide_factor": 4.0}, 0.5),
    ({"compression": hvd.Compression.fp16}, 0.5), ({"sparse_as_dense": True}, 0.5),
]  # fmt: skip
for options, factor in ways:
    for found, expected in zip(
        gradient(**options), (3 * factor * 2 * v.numpy(), factor * rows), strict=True
    ):
        same(found, expected)


class Halved:
    """A compression of the program's own."""

    @staticmethod
    def compress(tensor):
        return tensor / 2, None

    @staticmethod
    def decompress(tensor, ctx):
        return tensor


same(gradient(compression=Halved)[0], 0.75 * 2 * v.numpy())

# Objects, variables, sets.
assert hvd.broadcast_object({"rank": r}, 1) == {"rank": 1}
assert hvd.allgather_object("x" * r) == ["", "x"]
w = tf.Variable([float(r)])
tf.function(lambda: hvd.broadcast_variables([w], root_rank=1))()
same(w, [1.0])
alone = [hvd.add_process_set([0]), hvd.add_process_set(hvd.ProcessSet([1]))]
assert [each.rank() for each in alone] == [[0, None], [None, 0]][r]
same(hvd.allreduce(x, process_set=alone[r]), x.numpy())
raises(ValueError, lambda: hvd.allreduce(x, process_set=alone[1 - r]), "is not in")
raises(ValueError, lambda: hvd.add_process_set([1]), "already")
assert hvd.remove_process_set(alone[0]) and hvd.remove_process_set(alone[1])

# What does not fit is an error in all processes, and the next operation works.
invalid = tf.errors.InvalidArgumentError
raises(invalid, lambda: hvd.allreduce(x, name=f"name {r}"), "name 0", "name 1")
raises(invalid, lambda: hvd.allreduce(tf.ones([2 + r])), "[2]", "[3]")
raises(invalid, lambda: hvd.allreduce(tf.ones([2], [tf.float32, tf.int32][r])), "int32")
raises(invalid, lambda: hvd.allgather(tf.ones([2, 2 + r])), "disagree")
raises(invalid, lambda: hvd.allgather(1.0), "scalar")
raises(invalid, lambda: hvd.alltoall(x, splits=[[1, 1], [9, 0]][r]), "splits")
raises(invalid, lambda: hvd.alltoall(x), "splits")
raises(Unsupported, lambda: hvd.allreduce(x, op=hvd.Adasum), "op=Average")
raises(Unsupported, hvd.join, "uneven=True")
raises(Unsupported, lambda: rdmatensor.horovod.run, "rdmatensor launch")
raises(NotImplementedError, lambda: hvd.allreduce(slices, op=hvd.Max))


@tf.function
def unsupported(value: Any) -> Any:
    return hvd.allreduce(value, op=hvd.Adasum)


raises(Unsupported, lambda: unsupported(x), "op=Average")
same(hvd.allreduce(x), 1.5 * one)

hvd.shutdown()
assert not hvd.is_initialized()
hvd.init()
same(hvd.allreduce(x), 1.5 * one)
print(json.dumps("OK"), flush=True)

# SPDX-License-Identifier: Apache-2.0
"""What arrives is what was sent, whatever it is, and it took the path that it should."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from plugin.planned import warm_up
from plugin.transports import TRANSPORT
from support.clusters import EVERY_WAY, Cluster
from support.graphs import TASK0, TASK1, cross, session, v1

INLINE_BYTES = 16384
TYPES = [
    tf.bool, tf.int8, tf.uint8, tf.int16, tf.uint16, tf.int32, tf.uint32, tf.int64, tf.uint64,
    tf.float16, tf.bfloat16, tf.float32, tf.float64, tf.complex64, tf.complex128,
]  # fmt: skip


def _content(dtype: tf.DType, elements: int) -> Any:
    numbers = np.arange(elements) % 101 - 50 * (not dtype.is_unsigned)
    if dtype.is_complex:
        return (numbers + 1j * numbers[::-1]).astype(dtype.as_numpy_dtype)
    return (numbers % 2 == 0) if dtype == tf.bool else numbers.astype(dtype.as_numpy_dtype)


def _sent(cluster: Cluster, path: str) -> tuple[int, int]:
    counters = cluster.stats(1)["paths"][path]
    return counters["sent_tensors"], counters["sent_bytes"]


@EVERY_WAY
@pytest.mark.parametrize("elements", [3, 40_000], ids=["small", "large"])
def test_types(cluster: Cluster, elements: int) -> None:
    contents = [_content(dtype, elements) for dtype in TYPES]

    def build() -> Any:
        with tf.device(TASK1):
            return [cross(v1.get_variable(f"v{i}", initializer=c)) for i, c in enumerate(contents)]

    with session(cluster, build) as opened:
        if cluster.plans:
            warm_up(cluster, lambda: opened.run(opened.built))
        cluster.reset_stats()
        received = opened.run(opened.built)
    for dtype, content, result in zip(TYPES, contents, received, strict=True):
        assert result.dtype == content.dtype, dtype
        np.testing.assert_array_equal(result, content, err_msg=str(dtype))
    if cluster.plans:
        assert _sent(cluster, "static")[0] == len(TYPES)
    elif elements * 16 > INLINE_BYTES:
        assert sum(_sent(cluster, path)[0] for path in ("dynamic", "bounce")) == len(TYPES)
    else:
        assert _sent(cluster, "inline")[0] == len(TYPES)
    assert _sent(cluster, "rpc") == (0, 0)


SHAPES = [
    (), (0,), (1,), (3, 0, 2), (1, 1, 1, 1, 1), (2, 3, 4, 5, 6, 7),
    (INLINE_BYTES // 4,), (INLINE_BYTES // 4 + 1,), (1 << 18,), (1000, 777),
]  # fmt: skip


@EVERY_WAY
def test_shapes(cluster: Cluster) -> None:
    contents = [np.random.default_rng(7).normal(size=shape).astype("f") for shape in SHAPES]

    def build() -> Any:
        with tf.device(TASK1):
            return [cross(v1.get_variable(f"v{i}", initializer=c)) for i, c in enumerate(contents)]

    with session(cluster, build) as opened:
        for again in range(3):
            if again and cluster.plans:
                warm_up(cluster, lambda: opened.run(opened.built))
            for content, result in zip(contents, opened.run(opened.built), strict=True):
                assert result.shape == content.shape
                np.testing.assert_array_equal(result, content)


LENT_WAYS = pytest.mark.parametrize(
    ("cluster", "path"),
    [("dynamic_cluster", "dynamic"), ("shared_cluster", "static")],
    indirect=["cluster"],
)


@LENT_WAYS
def test_256_mb_is_used_in_place(cluster: Cluster, path: str) -> None:
    elements = 64 << 20

    def build() -> Any:
        with tf.device(TASK1):
            big = tf.reshape(tf.range(elements), [64, -1])
            big = v1.get_variable("big", initializer=lambda: big, dtype=tf.int32, use_resource=True)
            read = big.read_value()
        with tf.device(TASK0):
            return tf.reduce_max(read, 1), read[5, 7]

    with session(cluster, build) as opened:
        cluster.reset_stats()
        if path == "static":
            warm_up(cluster, lambda: opened.run(opened.built))
        largest, one = opened.run(opened.built)
        np.testing.assert_array_equal(largest, np.arange(1, 65) * (elements // 64) - 1)
        assert one == 5 * (elements // 64) + 7
        assert _sent(cluster, path) == (1, elements * 4)
        assert cluster.stats(0)["paths"][path]["received_bytes"] == elements * 4
        # The loan ends with the step: what was lent is used again, the arena does not grow.
        used = cluster.stats(1)["arena"]["used_bytes"]
        for _ in range(3):
            opened.run(opened.built)
        assert cluster.stats(1)["arena"]["used_bytes"] == used


def test_strings_and_variants_go_by_rpc(cluster: Cluster) -> None:
    words = np.array([b"", b"one", b"x" * 100_000], dtype=object)

    def build() -> Any:
        with tf.device(TASK1):
            text = v1.get_variable("text", initializer=tf.constant(list(words)), use_resource=True)
            items = tf.raw_ops.TensorListFromTensor(
                tensor=tf.range(12.0)[:, None], element_shape=[1]
            )
            joined = tf.strings.join([text, "!"])
        with tf.device(TASK0):
            stacked = tf.raw_ops.TensorListStack(
                input_handle=items, element_shape=[1], element_dtype=tf.float32
            )
            return tf.strings.length(joined), tf.identity(joined), stacked

    with session(cluster, build) as opened:
        for _ in range(3):
            lengths, text, stacked = opened.run(opened.built)
            assert list(lengths) == [1, 4, 100_001]
            assert list(text) == [word + b"!" for word in words]
            np.testing.assert_array_equal(stacked[:, 0], np.arange(12))
    reasons = cluster.stats(1)["rpc_reasons"]
    assert reasons.get("string", 0) >= 3
    assert reasons.get("variant", 0) == 3
    assert set(reasons) == {"string", "variant"}
    assert _sent(cluster, "rpc")[0] == sum(reasons.values())


def test_feeds_of_any_batch_size(cluster: Cluster) -> None:
    def build() -> Any:
        with tf.device(TASK1):
            fed = v1.placeholder(tf.float32, [None, 256])
            return fed, cross(fed * 2)

    with session(cluster, build) as opened:
        fed, doubled = opened.built
        for batch in (1, 0, 64, 3, 1000, 17):
            content = np.random.default_rng(batch).normal(size=(batch, 256)).astype("f")
            np.testing.assert_array_equal(opened.run(doubled, {fed: content}), content * 2)


def test_peers_are_explained(cluster: Cluster) -> None:
    def build() -> Any:
        with tf.device(TASK1):
            return cross(tf.random.normal([3]))

    with session(cluster, build) as opened:
        opened.run(opened.built)
    task1 = "/job:worker/replica:0/task:1"
    peers = cluster.stats(0)["peers"]
    # Beside it there may be others: the client of the session, or the task before it was restarted.
    ready = [
        p for p in peers if (p["direction"], p["task"], p["state"]) == ("receive", task1, "ready")
    ]
    assert len(ready) == 1, peers
    assert ready[0]["transport"] == TRANSPORT
    assert ready[0]["why"]
    assert cluster.stats(0)["arena"]["active"]


@EVERY_WAY
def test_bytes_are_counted_by_transport_and_by_how_they_were_got(cluster: Cluster) -> None:
    sizes = [1, 100_000, 1_000_000]

    def build() -> Any:
        with tf.device(TASK1):
            return [cross(tf.random.normal([size])) for size in sizes]

    with session(cluster, build) as opened:
        if cluster.plans:
            warm_up(cluster, lambda: opened.run(opened.built))
        cluster.reset_stats()
        opened.run(opened.built)
    received, sent = cluster.stats(0), cluster.stats(1)
    total, large = 4 * sum(sizes), 4 * sum(sizes[1:])
    assert sent["transports"][TRANSPORT]["sent_bytes"] == total
    assert received["transports"][TRANSPORT]["received_bytes"] == total
    assert received["transports"][TRANSPORT]["received_tensors"] == len(sizes)
    how = "in_place" if TRANSPORT == "shm" and not cluster.reads else "read"
    other = {"read": "in_place", "in_place": "read"}[how]
    # Over tcp, the sender writes planned tensors into their places, however large they are.
    written = TRANSPORT != "shm" and cluster.plans
    expected = {"tensors": 0, "bytes": 0} if written else {"tensors": 2, "bytes": large}
    assert received["fetched"][how] == expected
    assert received["fetched"][other] == {"tensors": 0, "bytes": 0}

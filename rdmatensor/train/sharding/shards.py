# SPDX-License-Identifier: Apache-2.0
"""Cut variables into equal strips, one for each process, and move strips in buckets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import keras
import numpy as np
import tensorflow as tf

from ..backend.buckets import bucket_bytes_of, buckets_of
from ..backend.names import plain
from ..backend.tensorflow import operations
from ..backend.tensorflow.agree import label
from ..run.session import Session
from ..run.subgroup import Subgroup


class Cut:
    """The cut of values of one shape: flat, with zeros at the end until all strips are equally long."""

    def __init__(self, shape: Sequence[int], run: Session) -> None:
        self.shape = tuple(shape)
        self.count = int(np.prod(self.shape))
        self.length = -(-self.count // run.size)
        self._run = run

    def rows(self, whole: Any) -> Any:
        """Return all strips, as an array of shape (processes, length)."""
        missing = self.length * self._run.size - self.count
        flat = tf.reshape(whole, [-1])
        return tf.reshape(
            tf.pad(flat, [[0, missing]]) if missing else flat, [self._run.size, self.length]
        )

    def own(self, whole: Any) -> Any:
        """Return this process's strip, of shape (length,)."""
        begin = min(self._run.rank * self.length, self.count)
        part = tf.reshape(whole, [-1])[begin : begin + self.length]
        missing = self.length - (min(begin + self.length, self.count) - begin)
        return tf.pad(part, [[0, missing]]) if missing else part

    def whole(self, strips: Any) -> Any:
        """Return the values that `rows`, or the concatenation of all strips, was cut from."""
        return tf.reshape(tf.reshape(strips, [-1])[: self.count], self.shape)


class Strip:
    """A variable, and the part of it that this process updates, which is a variable too."""

    def __init__(self, whole: Any, run: Session) -> None:
        self.whole = whole
        self.cut = Cut(whole.shape, run)
        self.variable = keras.Variable(
            lambda shape, dtype: self.cut.own(tf.convert_to_tensor(whole)),
            shape=(self.cut.length,),
            dtype=whole.dtype,
            trainable=False,
            name=str(whole.name).replace("/", "_").replace(":", "_"),
        )

    def refresh(self) -> None:
        """Take what the variable has now: others may have changed it, such as a callback or a constraint."""
        self.variable.assign(self.cut.own(tf.convert_to_tensor(self.whole)))


class Buckets:
    """Strips that travel together: large variables alone, small ones in groups, the last ones first."""

    def __init__(
        self,
        run: Session,
        lanes: Sequence[Subgroup],
        strips: Sequence[Strip],
        dtypes: Sequence[Any],
        limit: int | Literal["auto"],
        name: str,
    ) -> None:
        """Sort `strips`, whose gradients are of `dtypes`, into buckets of at most `limit` bytes.

        Weights travel in `lanes`, each of which is a group of all processes of `run`: those that the next
        forward pass needs first do not wait for the others.
        """
        self._run, self._strips, self._name = run, strips, plain(name)
        sized = [
            (i, (dtype, each.variable.dtype), each.cut.count * tf.as_dtype(dtype).size)
            for i, (each, dtype) in enumerate(zip(strips, dtypes, strict=True))
        ]
        self.members = buckets_of(sized[::-1], bucket_bytes_of(run, limit))
        """Indices of strips, by bucket."""
        counts = [sum(strips[i].cut.count for i in each) for each in self.members]
        prefetch = np.cumsum([0, *counts]) * len(lanes) // max(sum(counts), 1)
        self._lanes = [lanes[min(int(each), len(lanes) - 1)] for each in prefetch[:-1]]

    def __len__(self) -> int:
        return len(self.members)

    def _detail(self, what: str, number: int) -> str:
        heading = f"{what} {number + 1} of {len(self)} of {self._name}"
        return operations.listed(
            heading, [label(self._strips[i].whole) for i in self.members[number]]
        )

    def start_reduce(self, number: int, grads: Sequence[Any]) -> Callable[[], list[Any]]:
        """Start to reduce a bucket. Return a function that waits, and returns the mean of each own strip."""
        strips = [self._strips[i] for i in self.members[number]]
        # Embeddings have gradients of rows. The weights travel whole anyway.
        dense = [tf.convert_to_tensor(grads[i]) for i in self.members[number]]
        rows = [each.cut.rows(grad) for each, grad in zip(strips, dense, strict=True)]
        widths = [each.cut.length for each in strips]
        started = operations.start(
            self._run.handle,
            "reduce_scatter",
            [rows[0] if len(rows) == 1 else tf.concat(rows, 1)],
            self._detail("gradients", number),
            **operations.averaging(dense[0].dtype, self._run.size),
            shapes=[tf.TensorShape([1, sum(widths)])],
        )

        def finish() -> list[Any]:
            (own,) = started.finish()
            return [tf.reshape(part, [-1]) for part in _split(own, widths)]

        return finish

    def start_gather(self, number: int) -> Any:
        """Start to gather the strips of a bucket. Return a token, a tensor, for `finish_gather`."""
        strips = [self._strips[i] for i in self.members[number]]
        own = [tf.convert_to_tensor(each.variable) for each in strips]
        started = operations.start(
            self._lanes[number].handle,
            "all_gather",
            [own[0] if len(own) == 1 else tf.concat(own, 0)],
            self._detail("weights", number),
        )
        return started.token

    def finish_gather(self, number: int, token: Any) -> None:
        """Wait for the strips of a bucket, and set its variables."""
        strips = [self._strips[i] for i in self.members[number]]
        widths = [each.cut.length for each in strips]
        shape = tf.TensorShape([self._run.size * sum(widths)])
        (found,) = operations.Started(token, strips[0].variable.dtype, [shape]).finish()
        rows = tf.reshape(found, [self._run.size, sum(widths)])
        for each, part in zip(strips, _split(rows, widths), strict=True):
            each.whole.assign(each.cut.whole(part))


def _split(rows: Any, widths: Sequence[int]) -> Any:
    return [rows] if len(widths) == 1 else tf.split(rows, widths, 1)

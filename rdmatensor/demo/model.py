# SPDX-License-Identifier: Apache-2.0
"""The classifier and its data: scikit-learn's handwritten digits, a perceptron with two hidden layers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import tensorflow as tf
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from rdmatensor.demo.settings import layer_shapes

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int32]


@dataclass(frozen=True)
class Digits:
    """1797 images as rows of 64 floats in 0..1, with labels 0..9. A fifth of them is kept for the test."""

    train_images: Floats
    train_labels: Ints
    test_images: Floats
    test_labels: Ints

    @classmethod
    def load(cls, seed: int) -> Digits:
        """Loads the data set and splits it so that both parts have the same proportions of classes."""
        images, labels = load_digits(return_X_y=True)
        parts = train_test_split(
            (images / 16.0).astype(np.float32),
            labels.astype(np.int32),
            test_size=0.2,
            random_state=seed,
            stratify=labels,
        )
        return cls(parts[0], parts[2], parts[1], parts[3])


class Perceptron(tf.Module):  # type: ignore[misc]
    """A perceptron 64 -> hidden -> hidden -> 10 with rectified linear units, made of plain tf.Variables."""

    def __init__(self, hidden: int, seed: int) -> None:
        super().__init__()
        self.parameters = [
            tf.Variable(initial(shape, [seed, index]))
            for index, shape in enumerate(layer_shapes(hidden))
        ]

    def logits(self, images: tf.Tensor) -> tf.Tensor:
        """Returns [batch, 10] scores of [batch, 64] images."""
        return logits(self.parameters, images)


def logits(parameters: list[tf.Tensor], images: tf.Tensor) -> tf.Tensor:
    """Returns [batch, 10] scores. `parameters` are weights and biases in the order of `layer_shapes`."""
    (w0, b0, w1, b1, w2, b2) = parameters
    first = tf.nn.relu(tf.matmul(images, w0) + b0)
    second = tf.nn.relu(tf.matmul(first, w1) + b1)
    return tf.matmul(second, w2) + b2


def mean_loss(scores: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    """Returns the mean cross entropy of [batch, 10] scores."""
    return tf.reduce_mean(
        tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=scores)
    )


def initial(shape: tuple[int, ...], seed: list[int]) -> tf.Tensor:
    """Initialises weights as He et al. do, and biases with zeros."""
    if len(shape) == 1:
        return tf.zeros(shape)
    return tf.random.stateless_normal(shape, seed=seed, stddev=(2.0 / shape[0]) ** 0.5)

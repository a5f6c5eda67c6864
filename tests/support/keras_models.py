# SPDX-License-Identifier: Apache-2.0
"""Keras models whose communication is known to be static when the batch is fixed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras

CLASSES = 10
STEPS, WIDTH, HEADS = 20, 64, 4


def recurrent(layer: Any) -> Any:
    """A sequence classifier with one recurrent layer."""
    inputs = keras.Input((STEPS, WIDTH))
    return keras.Model(inputs, keras.layers.Dense(CLASSES)(layer(WIDTH)(inputs)))


def transformer() -> Any:
    """Tokens, one block of attention and a feed-forward layer, a classifier."""
    layers = keras.layers
    tokens = keras.Input((STEPS,), dtype="int32")
    x = layers.Embedding(1000, WIDTH)(tokens)
    attention = layers.MultiHeadAttention(HEADS, WIDTH // HEADS, dropout=0.1)(x, x)
    x = layers.LayerNormalization()(layers.Add()([x, attention]))
    forward = layers.Dense(WIDTH)(layers.Dense(4 * WIDTH, activation="relu")(x))
    x = layers.LayerNormalization()(layers.Add()([x, forward]))
    pooled = layers.GlobalAveragePooling1D()(x)
    return keras.Model(tokens, layers.Dense(CLASSES)(pooled))


MODELS: dict[str, Callable[[], Any]] = {
    "VGG16": lambda: keras.applications.VGG16(weights=None),
    "MobileNetV2": lambda: keras.applications.MobileNetV2(weights=None),
    "LSTM": lambda: recurrent(keras.layers.LSTM),
    "GRU": lambda: recurrent(keras.layers.GRU),
    "transformer block": transformer,
}

# SPDX-License-Identifier: Apache-2.0
"""The layers of a model as balance equations see them, and the networks of PCL-DNN's paper."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ..model.errors import AnalysisError

FLOAT = 4  # bytes


@dataclass(frozen=True)
class Layer:
    """A layer with weights.

    In the paper's letters, weights = ifm ofm kw kh, inputs = ifm iw ih and positions = ow oh, all of one
    example. A dense layer has one position.
    """

    name: str
    weights: int
    inputs: int
    positions: int
    kernel: tuple[int, ...] = ()
    """kh, kw, ifm, ofm of a convolution; ifm, ofm of a dense layer; empty for others."""
    stride: int = 1
    image: tuple[int, ...] = ()
    """ih, iw of a convolution."""

    @property
    def flops(self) -> float:
        """The operations of one pass of one example. A step has three passes: forward, and two backward."""
        return 2.0 * self.weights * self.positions

    @property
    def can_be_cut(self) -> bool:
        """Whether its outputs can be shared among workers."""
        return bool(self.kernel)


def conv(name: str, ifm: int, ofm: int, k: int, image: int, out: int, stride: int = 1) -> Layer:
    """Return a convolution of k x k, from `ifm` square images of side `image` to `ofm` ones of side `out`."""
    return Layer(name, ifm * ofm * k * k, ifm * image * image, out * out, (k, k, ifm, ofm), stride,
                 (image, image))  # fmt: skip


def dense(name: str, ifm: int, ofm: int) -> Layer:
    """Return a dense layer from `ifm` inputs to `ofm` outputs."""
    return Layer(name, ifm * ofm, ifm, 1, (ifm, ofm))


def _vgg_a() -> Iterator[Layer]:
    ifm = 3
    for i, (ofm, image) in enumerate(
        [(64, 224), (128, 112), (256, 56), (256, 56), (512, 28), (512, 28), (512, 14), (512, 14)], 1
    ):
        yield conv(f"conv{i}", ifm, ofm, 3, image, image)
        ifm = ofm
    for i, (inputs, ofm) in enumerate([(512 * 49, 4096), (4096, 4096), (4096, 1000)], 6):
        yield dense(f"fc{i}", inputs, ofm)


def _overfeat_fast() -> Iterator[Layer]:
    yield conv("conv1", 3, 96, 11, 231, 56, 4)
    yield conv("conv2", 96, 256, 5, 28, 24)
    yield conv("conv3", 256, 512, 3, 12, 12)
    yield conv("conv4", 512, 1024, 3, 12, 12)
    yield conv("conv5", 1024, 1024, 3, 12, 12)
    yield dense("fc6", 1024 * 36, 3072)
    yield dense("fc7", 3072, 4096)
    yield dense("fc8", 4096, 1000)


def _cd_dnn() -> Iterator[Layer]:
    yield dense("hidden1", 440, 2048)
    for i in range(2, 8):
        yield dense(f"hidden{i}", 2048, 2048)
    yield dense("senones", 2048, 9304)


NETWORKS: dict[str, Callable[[], Iterator[Layer]]] = {
    "vgg_a": _vgg_a,
    "overfeat_fast": _overfeat_fast,
    "cd_dnn": _cd_dnn,
}


def layers_of(model: Any) -> list[Layer]:
    """Return the layers of a built Keras model that have weights, in their order.

    Raises AnalysisError if the model is not built, has no such layer, or its inputs have no fixed size.
    """
    if not getattr(model, "built", False):
        raise AnalysisError("the model is not built: give it a keras.Input, or call it once")
    found = [layer for each in _leaves(model) for layer in [_layer(each)] if layer is not None]
    if not found:
        raise AnalysisError("the model has no layer with weights")
    return found


def _leaves(model: Any) -> Iterator[Any]:
    for layer in model.layers:
        if getattr(layer, "layers", None):
            yield from _leaves(layer)
        else:
            yield layer


def _layer(layer: Any) -> Layer | None:
    weights = sum(math.prod(each.shape) for each in layer.trainable_weights)
    if not weights:
        return None
    try:
        ins, outs = _shape(layer.input), _shape(layer.output)
    except AttributeError:
        raise AnalysisError(f"layer {layer.name} is used several times, or in none") from None
    if None in ins or None in outs:
        raise AnalysisError(f"layer {layer.name} has inputs {ins}: give keras.Input a fixed shape")
    kernel: Any
    kind, kernel = type(layer).__name__, getattr(layer, "kernel", None)
    inputs = math.prod(ins)
    if kind == "Dense" and kernel is not None:
        return Layer(layer.name, weights, inputs, math.prod(outs[:-1]), tuple(kernel.shape))
    if kind == "Conv2D" and layer.groups == 1 and layer.data_format == "channels_last":
        return Layer(layer.name, weights, inputs, math.prod(outs[:-1]), tuple(kernel.shape),
                     int(layer.strides[0]), tuple(ins[:2]))  # fmt: skip
    positions = 0 if kind == "Embedding" else max(1, math.prod(outs[:-1]))
    return Layer(layer.name, weights, inputs, positions)


def _shape(tensors: Any) -> Sequence[Any]:
    first = tensors[0] if isinstance(tensors, (list, tuple)) else tensors
    return tuple(first.shape[1:])

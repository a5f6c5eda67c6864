# SPDX-License-Identifier: Apache-2.0
"""The six workloads of the RDMA paper as lists of variables. This module does not import TensorFlow.

"RPC Considered Harmful" (Xue et al., arXiv 1805.08430) gives the size and the number of variables of each
model. The shapes are chosen so that both agree, with float32 and ten classes of images. `compute_ms` is the
time of one sample on the paper's machine; it is remembered, not read, and good for the order of magnitude.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

Shape = tuple[int, ...]
MIB = 1 << 20
_CLASSES = 10


@dataclass(frozen=True)
class Model:
    """One workload. The shapes add up to `mebibytes` and `count`, which the paper gives."""

    name: str
    mebibytes: float
    count: int
    compute_ms: float
    shapes: tuple[Shape, ...]
    # The speedup over gRPC that we want for a step that only communicates.
    target: float | None = None

    def __post_init__(self) -> None:
        """ValueError if the shapes do not add up to what the paper says."""
        if len(self.shapes) != self.count or round(self.nbytes / MIB, 2) != self.mebibytes:
            raise ValueError(
                f"{self.name}: {len(self.shapes)} variables of {self.nbytes / MIB:.2f} MiB, "
                f"not {self.count} of {self.mebibytes}"
            )

    @property
    def nbytes(self) -> int:
        """The bytes of all variables, in float32."""
        return sum(4 * math.prod(shape) for shape in self.shapes)


def _with_biases(weights: list[Shape]) -> Iterator[Shape]:
    for shape in weights:
        yield shape
        yield shape[-1:]


def _alexnet() -> Iterator[Shape]:
    """The network alexnet_v2 of TensorFlow slim."""
    convolutions = [(11, 11, 3, 64), (5, 5, 64, 192)]
    convolutions += [(3, 3, 192, 384), (3, 3, 384, 384), (3, 3, 384, 256)]
    dense = [(5, 5, 256, 4096), (1, 1, 4096, 4096), (1, 1, 4096, _CLASSES)]
    return _with_biases([*convolutions, *dense])


def _vgg16() -> Iterator[Shape]:
    features = [3, 64, 64, 128, 128, 256, 256, 256, 512, 512, 512, 512, 512, 512]
    weights: list[Shape] = [(3, 3, *pair) for pair in pairwise(features)]
    weights += [(7, 7, 512, 4096), (1, 1, 4096, 4096), (1, 1, 4096, _CLASSES)]
    return _with_biases(weights)


def _recurrent(gates: int) -> Iterator[Shape]:
    """A cell of 1024 units with inputs of the same width, and a softmax over 1000 words."""
    for _ in range(gates):
        yield from ((1024, 1024), (1024, 1024), (1024,))
    yield from ((1024, 1000), (1000,))


def _fcn5() -> Iterator[Shape]:
    widths = [784, 4096, 4096, 4096, 4096, _CLASSES]
    return _with_biases(list(pairwise(widths)))


def _chain(features: int, *layers: tuple[int, int, int]) -> Iterator[Shape]:
    """Consecutive convolutions. A layer is the height, the width and the output features of its kernel."""
    for height, width, out in layers:
        yield (height, width, features, out)
        features = out


def _inception_a(features: int, pooled: int) -> Iterator[Shape]:
    yield from _chain(features, (1, 1, 64))
    yield from _chain(features, (1, 1, 48), (5, 5, 64))
    yield from _chain(features, (1, 1, 64), (3, 3, 96), (3, 3, 96))
    yield from _chain(features, (1, 1, pooled))


def _inception_b(narrow: int) -> Iterator[Shape]:
    yield from _chain(768, (1, 1, 192))
    yield from _chain(768, (1, 1, narrow), (1, 7, narrow), (7, 1, 192))
    tall_and_wide = ((7, 1, narrow), (1, 7, narrow), (7, 1, narrow), (1, 7, 192))
    yield from _chain(768, (1, 1, narrow), *tall_and_wide)
    yield from _chain(768, (1, 1, 192))


def _inception_c(features: int) -> Iterator[Shape]:
    yield from _chain(features, (1, 1, 320))
    yield from _chain(features, (1, 1, 384))
    yield from ((1, 3, 384, 384), (3, 1, 384, 384))
    yield from _chain(features, (1, 1, 448), (3, 3, 384))
    yield from ((1, 3, 384, 384), (3, 1, 384, 384))
    yield from _chain(features, (1, 1, 192))


def _inception_v3() -> Iterator[Shape]:
    """The network inception_v3 of TensorFlow slim, with its auxiliary head and without scales."""
    convolutions = list(_chain(3, (3, 3, 32), (3, 3, 32), (3, 3, 64), (1, 1, 80), (3, 3, 192)))
    for features, pooled in ((192, 32), (256, 64), (288, 64)):
        convolutions += _inception_a(features, pooled)
    convolutions += [(3, 3, 288, 384), *_chain(288, (1, 1, 64), (3, 3, 96), (3, 3, 96))]
    for narrow in (128, 160, 160, 192):
        convolutions += _inception_b(narrow)
    convolutions += _chain(768, (1, 1, 192), (3, 3, 320))
    convolutions += _chain(768, (1, 1, 192), (1, 7, 192), (7, 1, 192), (3, 3, 192))
    for features in (1280, 2048):
        convolutions += _inception_c(features)
    convolutions += _chain(768, (1, 1, 128), (5, 5, 768))
    heads = [(1, 1, 2048, _CLASSES), (1, 1, 768, _CLASSES)]
    return _with_biases([*convolutions, *heads])


MODELS = {
    model.name: model
    for model in (
        Model("AlexNet", 176.42, 16, 7.6, tuple(_alexnet()), target=25),
        Model("Inception-v3", 92.90, 196, 68.3, tuple(_inception_v3()), target=5),
        Model("VGG-16", 512.32, 32, 30.9, tuple(_vgg16()), target=25),
        Model("LSTM", 35.93, 14, 33.3, tuple(_recurrent(4))),
        Model("GRU", 27.92, 11, 30.4, tuple(_recurrent(3))),
        Model("FCN-5", 204.47, 10, 4.9, tuple(_fcn5()), target=25),
    )
}

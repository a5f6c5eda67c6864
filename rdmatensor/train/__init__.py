# SPDX-License-Identifier: Apache-2.0
"""Train a Keras 3 model in several processes, on one host or many:

    # rdmatensor launch -n 4 train.py
    import keras, rdmatensor.train as rt
    rt.init()
    model = build()
    model.compile(rt.distribute(keras.optimizers.Adam(1e-3)), loss="mse")
    model.fit(rt.shard(data), epochs=5, callbacks=rt.callbacks())

Every process runs the same program. They exchange gradients over shared memory, RDMA or TCP. See
docs/train.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .._api.extras import needed_by
from .._api.lazy import attach
from ..errors import Unsupported

if TYPE_CHECKING:
    from . import ops, sync
    from .backend.data import shard
    from .backend.tensorflow.optimizer import GradientTape
    from .costs import statistics, trace
    from .embeddings.explain import explain
    from .embeddings.parallelize import parallelize
    from .keras.callbacks import callbacks, on_rank_0
    from .keras.distributing import distribute
    from .keras.evaluate import evaluate, predict
    from .keras.saving import save
    from .ops import broadcast_variables
    from .run.session import Session, init, local_rank, rank, shutdown, size
    from .tensor_parallel.model import split

__all__ = [
    "GradientTape",
    "Session",
    "broadcast_variables",
    "callbacks",
    "distribute",
    "evaluate",
    "explain",
    "init",
    "local_rank",
    "on_rank_0",
    "ops",
    "parallelize",
    "predict",
    "rank",
    "save",
    "shard",
    "shutdown",
    "size",
    "split",
    "statistics",
    "sync",
    "trace",
]

_HOMES = {
    "": "ops sync",
    "backend.data": "shard",
    "backend.tensorflow.optimizer": "GradientTape",
    "costs": "statistics trace",
    "embeddings.explain": "explain",
    "embeddings.parallelize": "parallelize",
    "keras.callbacks": "callbacks on_rank_0",
    "keras.distributing": "distribute",
    "keras.evaluate": "evaluate predict",
    "keras.saving": "save",
    "ops": "broadcast_variables",
    "run.session": "Session init local_rank rank shutdown size",
    "tensor_parallel.model": "split",
}
# Where Keras runs on PyTorch.
_ON_TORCH = {"keras.on_torch": "broadcast_variables callbacks on_rank_0"}
_EVERYWHERE = "Session distribute init local_rank rank shard shutdown size statistics sync"


def _on_torch(name: str) -> bool:
    """Tell whether a name has another home on PyTorch. Raises Unsupported if it has none there."""
    if name not in __all__ or name in _EVERYWHERE.split():
        return False
    with needed_by(f"{__name__}.{name}"):
        from .backend.base import framework

        if framework() != "torch":
            return False
    if not any(name in names.split() for names in _ON_TORCH.values()):
        raise Unsupported(
            f"rdmatensor.train.{name} needs KERAS_BACKEND=tensorflow, and Keras runs on PyTorch",
            "UNSUPPORTED",
        )
    return True


if not TYPE_CHECKING:
    _homes = attach(__name__, _HOMES), attach(__name__, _ON_TORCH)

    def __getattr__(name: str) -> Any:
        return _homes[_on_torch(name)](name)

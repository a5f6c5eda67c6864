# SPDX-License-Identifier: Apache-2.0
"""Make an optimizer train one model in all processes."""

from __future__ import annotations

import weakref
from typing import Any

import keras

from ...errors import UsageError
from ..backend.optimizers import checked, inside
from ..backend.tensorflow.optimizer import put_in_front
from ..run.session import current
from ..sync.base import Parameters, Synchronizer
from .steps import prepare_steps

# An attribute of a synchronizer: the optimizer that it serves, weakly.
_SERVES = "_rdmatensor_serves"


def distribute(optimizer: Any, sync: Synchronizer | None = None) -> Any:
    """Make a Keras optimizer train one model in all processes, as `sync` says. Return it.

    By default (AllReduce) it applies the mean of the gradients of all processes.

    The optimizer keeps its class's name, its state and its settings, so a model that is saved with it loads
    where rdmatensor is not installed. Clipping, weight decay, moving averages and gradient accumulation see
    the mean. With the policy "mixed_float16" the optimizer is wrapped into Keras's LossScaleOptimizer here,
    as compile() would do it, so that all processes skip the same steps.

    Raises UsageError if init() was not called, if it is no Keras 3 optimizer, or if it is distributed
    already.
    """
    run = current()
    if isinstance(optimizer, str):
        optimizer = keras.optimizers.get(optimizer)
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise UsageError(
            f"{optimizer!r} is no optimizer of Keras {keras.__version__}: distribute() takes a "
            "keras.optimizers.Optimizer or its name"
        )
    if keras.backend.backend() != "tensorflow":
        raise UsageError(
            f"Keras runs on {keras.backend.backend()}: keras.distribution.DataParallel averages gradients "
            "there, over rdmatensor if `rdmatensor launch --jax` starts the program"
        )
    if _is_distributed(optimizer):
        raise UsageError(f"{optimizer.name} is distributed already: call distribute() once for it")
    scales = isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
    if not scales and keras.config.dtype_policy().name == "mixed_float16":
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer, name="loss_scale_optimizer")
    sync = checked(sync, Synchronizer, "distribute(optimizer, sync)", "LocalSGD(8)")
    if run.returns and not (isinstance(sync, Parameters) and sync.comes_back):
        raise UsageError(
            f"rank {run.rank} was started again while the others train: with {type(sync).__name__} it "
            "cannot come back: start all again"
        )
    if run.size > 1:
        if sync.has_state:  # which belongs to one vector
            served = getattr(sync, _SERVES, lambda: None)()
            if served is not None:
                raise UsageError(
                    f"{type(sync).__name__} serves {served.name} already: give each optimizer a "
                    "synchronizer of its own"
                )
            object.__setattr__(sync, _SERVES, weakref.ref(optimizer))
        prepare_steps()
        put_in_front(optimizer, run, sync)
    return optimizer


def _is_distributed(optimizer: Any) -> bool:
    # One that was made from the configuration of a distributed one has its class only.
    own = "_rdmatensor_run" in getattr(optimizer, "__dict__", {})
    return own or any(map(_is_distributed, inside(optimizer)))

# SPDX-License-Identifier: Apache-2.0
"""Make an optimizer train one model in all processes."""

from __future__ import annotations

import weakref
from typing import Any

import keras

from ...errors import UsageError
from ..backend.base import framework
from ..backend.distributed import put_in_front
from ..backend.optimizers import checked, inside
from ..run.session import current
from ..sync.base import Parameters, Synchronizer

# An attribute of a synchronizer: the optimizer that it serves, weakly.
_SERVES = "_rdmatensor_serves"


def distribute(optimizer: Any, sync: Synchronizer | None = None) -> Any:
    """Make a Keras optimizer train one model in all processes, as `sync` says. Return it.

    By default (AllReduce) it applies the mean of the gradients of all processes.

    The optimizer keeps its class's name, its state and its settings, so a model that is saved with it loads
    where rdmatensor is not installed. Clipping, weight decay, moving averages and gradient accumulation see
    the mean. With the policy "mixed_float16" the optimizer is wrapped into Keras's LossScaleOptimizer here,
    as compile() would do it, so that all processes skip the same steps.

    On PyTorch, loops of your own average gradients as they are, as DistributedDataParallel does: give all
    processes batches of one size there.

    Raises UsageError if init() was not called, if it is no Keras 3 optimizer, or if it is distributed
    already; Unsupported on PyTorch for synchronizers that divide the optimizer's state.
    """
    run = current()
    if isinstance(optimizer, str):
        optimizer = keras.optimizers.get(optimizer)
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise UsageError(
            f"{optimizer!r} is no optimizer of Keras {keras.__version__}: distribute() takes a "
            "keras.optimizers.Optimizer or its name"
        )
    if framework() not in ("tensorflow", "torch"):
        raise UsageError(
            f"Keras runs on {framework()}: keras.distribution.DataParallel averages gradients "
            "there, over rdmatensor if `rdmatensor launch --jax` starts the program"
        )
    if _is_distributed(optimizer):
        raise UsageError(f"{optimizer.name} is distributed already: call distribute() once for it")
    scales = isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
    if not scales and keras.config.dtype_policy().name == "mixed_float16":
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer, name="loss_scale_optimizer")
    sync = checked(sync, Synchronizer, "distribute(optimizer, sync)", "LocalSGD(8)")
    on_tensorflow = framework() == "tensorflow"
    comes_back = on_tensorflow and isinstance(sync, Parameters) and sync.comes_back
    if run.returns and not comes_back:
        way = type(sync).__name__ if on_tensorflow else "Keras on PyTorch"
        raise UsageError(
            f"rank {run.rank} was started again while the others train: with {way} it cannot come back: "
            "start all again"
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
        if on_tensorflow:
            from .steps import prepare_steps
        else:
            from .steps_on_torch import prepare_steps
        prepare_steps()
        put_in_front(optimizer, run, sync)
    return optimizer


def _is_distributed(optimizer: Any) -> bool:
    # One that was made from the configuration of a distributed one has its class only.
    own = "_rdmatensor_run" in getattr(optimizer, "__dict__", {})
    return own or any(map(_is_distributed, inside(optimizer)))

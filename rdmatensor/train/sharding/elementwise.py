# SPDX-License-Identifier: Apache-2.0
"""Tell whether an optimizer can update parts of a variable by themselves."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from ...errors import UsageError

_KNOWN = {
    "SGD",
    "RMSprop",
    "Adam",
    "AdamW",
    "Adadelta",
    "Adagrad",
    "Adamax",
    "Nadam",
    "Ftrl",
    "Lion",
}
_SHAPE, _CUT = (4, 6), 9


def refuse_if_not_elementwise(optimizer: Any) -> None:
    """Raise UsageError if the optimizer updates a part of a variable otherwise than within the whole.

    An optimizer that is not one of Keras's well-known ones is tried on a small variable.
    """
    own = type(optimizer)
    if own.__name__ in _KNOWN and own.__module__.startswith("keras."):
        return
    try:
        alike = _try(optimizer)
    except Exception as error:  # whatever a user's class raises
        raise UsageError(
            f"{own.__name__} cannot be tried on strips of a variable: {error}. Use rt.sync.AllReduce()"
        ) from error
    if not alike:
        raise UsageError(
            f"{own.__name__} cannot be sharded: how it updates an element depends on others of the same "
            "variable, or its state begins with the weights. Use rt.sync.AllReduce(), or an "
            "elementwise optimizer"
        )


def _try(optimizer: Any) -> bool:
    config = optimizer.get_config()
    config |= dict.fromkeys(
        name
        for name in ("clipnorm", "clipvalue", "global_clipnorm", "gradient_accumulation_steps")
        if name in config
    )
    numbers = np.random.default_rng(1)
    value, *gradients = numbers.standard_normal((3, *_SHAPE)).astype(np.float32)

    def after(parts: Any) -> tuple[Any, Any]:
        with tf.init_scope():
            one = type(optimizer).from_config(dict(config))
            variables = [keras.Variable(part(value)) for part in parts]
            one.build(variables)
            state = [each.numpy() for each in one.variables]
            for gradient in gradients:
                one.apply([tf.constant(part(gradient)) for part in parts], variables)
            return np.concatenate([np.ravel(each.numpy()) for each in variables]), state

    whole, state = after([lambda x: x])
    cut, _ = after([lambda x: np.ravel(x)[:_CUT], lambda x: np.ravel(x)[_CUT:]])
    constant = all(np.ptp(each) == 0 for each in state if each.size > 1)
    return constant and bool(np.allclose(whole, cut, rtol=1e-5, atol=1e-7))

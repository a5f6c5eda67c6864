# SPDX-License-Identifier: Apache-2.0
"""Undo, when a fit ends, what callbacks changed for it. Keras tells them nothing of a fit that fails."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, wraps
from typing import Any

import keras

# An attribute of a model in fit: what to do at the end, in the order in which it was asked for.
_UNDO = "_rdmatensor_undo"


def until_fit_ends(model: Any, undo: Callable[[], None]) -> None:
    """Call `undo` when the model's fit returns or raises. What is registered last is undone first."""
    vars(model).setdefault(_UNDO, []).append(undo)


@cache
def watch_fits() -> None:
    """Wrap `fit` of Keras's models, once, so that it undoes what was registered."""
    trainer = trainer_with("fit")
    fit: Any = vars(trainer)["fit"]

    @wraps(fit)
    def watched(model: Any, *args: Any, **kwargs: Any) -> Any:
        undo = vars(model).setdefault(_UNDO, [])
        before = len(undo)  # a callback may fit the same model
        try:
            return fit(model, *args, **kwargs)
        finally:
            while len(undo) > before:
                undo.pop()()

    trainer.fit = watched  # type: ignore[attr-defined]


def trainer_with(name: str) -> type:
    """Return the class that gives keras.Model a method: a trainer of Keras, which other classes are, too."""
    found: type = next(each for each in keras.Model.__mro__ if name in vars(each))
    return found

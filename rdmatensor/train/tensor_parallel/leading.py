# SPDX-License-Identifier: Apache-2.0
"""Callbacks of rank 0 that save or load a split model, which takes all processes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras

from ...errors import UsageError
from .groups import Groups
from .slices import DONE, FAILED, SAVE, groups_of


def only_on_rank_0(callback: Any, rank: int) -> Any:
    """The callback in rank 0. Elsewhere it takes part in saving and loading, and does nothing else.

    Whatever the callback overrides is followed by the other processes, if the model is split.
    """
    here = callback if rank == 0 else keras.callbacks.Callback()
    for name in dir(keras.callbacks.Callback):
        act = getattr(callback, name)
        default = getattr(keras.callbacks.Callback, name)
        if name.startswith("on_") and getattr(act, "__func__", None) is not default:
            setattr(here, name, _lead(here, act) if rank == 0 else _follow(here, callback))
    return here


def _groups(callback: Any) -> Groups | None:
    return groups_of(callback.model.variables) if callback.model is not None else None


def _lead(here: Any, act: Callable[..., Any]) -> Callable[..., Any]:
    def lead(*arguments: Any, **named: Any) -> Any:
        groups = _groups(here)
        if groups is None or groups.leads:  # one that another one calls
            return act(*arguments, **named)
        groups.leads, last = True, FAILED
        try:
            result = act(*arguments, **named)
            last = DONE
            return result
        finally:
            groups.leads = False
            groups.tell(last)

    return lead


def _follow(here: Any, callback: Any) -> Callable[..., None]:
    def follow(*_: Any, **__: Any) -> None:
        groups = _groups(here)
        while groups is not None and (word := groups.tell()) != DONE:
            if word == FAILED:
                raise UsageError(f"{type(callback).__name__} failed in rank 0, which knows why")
            act = here.model.save_weights if word == SAVE else here.model.load_weights
            act("what rank 0 names")

    return follow

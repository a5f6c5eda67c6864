# SPDX-License-Identifier: Apache-2.0
"""The list that Keras calls callbacks in."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import keras


def list_of(callback: Any) -> Any:
    """Keras's list that the callback is in, which is setting up its callbacks now; None if there is none.

    Keras tells callbacks of their model and not of their list, whose order decides what comes last.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        found = frame.f_locals.get("self")
        if isinstance(found, keras.callbacks.CallbackList) and callback in found.callbacks:
            return found
        frame = frame.f_back
    return None

# SPDX-License-Identifier: Apache-2.0
"""Put a class in front of that of a Keras object, so that what is saved still loads without us."""

from __future__ import annotations

from typing import Any


def add(thing: Any, cls: type, **attributes: Any) -> None:
    """Give an object the methods of `cls`, and attributes that Keras does not track.

    Its class keeps its name and module. An object that has `cls` already only gets the attributes.
    """
    own = type(thing)
    if not isinstance(thing, cls):
        names = {
            "__module__": own.__module__,
            "__qualname__": own.__qualname__,
            "__doc__": own.__doc__,
        }
        attributes["__class__"] = type(own.__name__, (cls, own), names)
    for name, value in attributes.items():
        object.__setattr__(thing, name, value)


def remove(thing: Any) -> None:
    """Undo the last `add`. Attributes stay."""
    object.__setattr__(thing, "__class__", type(thing).__bases__[1])

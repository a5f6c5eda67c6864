# SPDX-License-Identifier: Apache-2.0
"""Import public names when they are first used, so that what needs no TensorFlow does not import it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from .extras import needed_by


def attach(package: str, homes: Mapping[str, str], first: str = "") -> Callable[[str], Any]:
    """Return a __getattr__ for a package, from the names in each of its modules; "" has those of modules.

    `first` is a module that is imported before the others.
    """
    found = {name: module for module, names in homes.items() for name in names.split()}

    def get(name: str) -> Any:
        if name not in found:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        with needed_by(f"{package}.{name}"):
            if first:
                import_module(f".{first}", package)
            module = import_module(f".{found[name] or name}", package)
        value = getattr(module, name) if found[name] else module
        setattr(sys.modules[package], name, value)
        return value

    return get

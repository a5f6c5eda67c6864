# SPDX-License-Identifier: Apache-2.0
"""Look at Keras's optimizers and at synchronizers: what they consist of, and how they are set."""

from __future__ import annotations

from typing import Any

from ...errors import UsageError
from ..sync.all_reduce import AllReduce
from ..sync.base import Synchronizer


def checked(sync: Any, kind: type, where: str, example: str) -> Any:
    """Return the synchronizer, or AllReduce if it is None. Raises UsageError if it is not a `kind`."""
    if sync is None:
        return AllReduce()
    if isinstance(sync, kind):
        return sync
    if isinstance(sync, type) and issubclass(sync, kind):
        raise UsageError(
            f"{where} got the class {sync.__name__}: give an object, {sync.__name__}()"
        )
    raise UsageError(
        f"{where} got {sync!r}: give an object, such as rt.sync.AllReduce() or rt.sync.{example}"
    )


def sync_of(optimizer: Any) -> Synchronizer:
    """Return how this optimizer is synchronized. One that is not distributed has the defaults."""
    return getattr(optimizer, "_rdmatensor_sync", None) or Synchronizer()


def inside(optimizer: Any) -> list[Any]:
    """Return the optimizers that one wraps: LossScaleOptimizer has one, MultiOptimizer several."""
    inner = getattr(optimizer, "inner_optimizer", None)
    return [inner] if inner is not None else list(getattr(optimizer, "optimizers", ()))


def leaves_of(optimizer: Any) -> list[Any]:
    """Return the optimizers that update variables at a learning rate: the one itself, or those inside."""
    return [leaf for each in inside(optimizer) for leaf in leaves_of(each)] or [optimizer]


def iterations_of(optimizer: Any) -> Any:
    """Return the variable that counts updates. Steps that a loss scale skips do not count."""
    return getattr(optimizer, "inner_optimizer", optimizer).iterations


def described(thing: Any) -> str:
    """Return a synchronizer's class and settings, as far as processes must have the same ones."""
    settings = []
    for name, value in sorted(vars(thing).items()):
        ours = type(value).__module__.partition(".")[0] == "rdmatensor"
        if ours and name not in ("_run", "lanes"):
            settings.append(f"{name.lstrip('_')}={described(value)}")
        elif not name.startswith("_") and isinstance(value, (int, float, str, type(None))):
            settings.append(f"{name}={value!r}")
    return f"{type(thing).__name__}({', '.join(settings)})"


def settings_in(config: dict[str, Any], before: str = "") -> list[str]:
    """Return the settings in a configuration, but names, as lines: "clipnorm = 1.0"."""
    lines = []
    for key, value in config.items():
        if isinstance(value, dict):
            lines.extend(settings_in(value, f"{before}{key}."))
        elif key != "name" and isinstance(value, (bool, int, float, str, type(None))):
            lines.append(f"{before}{key} = {value!r}")
    return lines

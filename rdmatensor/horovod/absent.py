# SPDX-License-Identifier: Apache-2.0
"""Name what there is in Horovod and not here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..errors import Unsupported
from .reductions import ReduceOp

_ABSENT = {
    "run": "start the program with `rdmatensor launch -np N`",
    "BroadcastGlobalVariablesHook": "it is for sessions of TensorFlow 1: call broadcast_variables",
}


class Absent(Unsupported, AttributeError):
    """A name of Horovod's that is not here. hasattr() says so, too."""


class AbsentOperation(Unsupported, NotImplementedError):
    """An operation of Horovod's that is not here. Horovod's own errors are RuntimeErrors, and so is this."""


def refuse(module: str) -> Callable[[str], Any]:
    """Return a __getattr__ for a module, which raises Absent with the remedy."""

    def get(name: str) -> Any:
        if name in _ABSENT:
            raise Absent(f"{name} is not there: {_ABSENT[name]}", "UNSUPPORTED")
        raise AttributeError(f"module {module!r} has no attribute {name!r}")

    return get


def refuse_adasum(op: ReduceOp) -> None:
    """Raise Unsupported for Adasum."""
    if op == ReduceOp.ADASUM:
        raise AbsentOperation(
            "Adasum is not there: use op=Average, and warm the rate up", "UNSUPPORTED"
        )

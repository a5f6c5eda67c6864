# SPDX-License-Identifier: Apache-2.0
"""Let processes agree which variables they exchange, and how, before they do.

A variable has the number under which all processes have agreed on it first. Operations on variables carry
these numbers and the names, so that they fail where processes mean different ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from ...run.session import Session
from ..names import plain, unwrapped
from . import operations
from .parts import both, part_of

# The attribute of a variable that has its number, and the generation of the run in which it got that.
_NUMBER = "_rdmatensor_number"


def label(variable: Any) -> str:
    """Return the name of a variable in operations and errors. Call `agree` first."""
    path = unwrapped(
        plain(str(getattr(variable, "path", None) or variable.name).removesuffix(":0"))
    )
    number = getattr(variable, _NUMBER, (None, None))[1]
    return path if number is None else f"{path} (variable {number})"


def labels_of(sources: Sequence[Any]) -> list[str]:
    """Return names for gradients of variables or tensors."""
    return [label(each) if _is_variable(each) else f"source {i}" for i, each in enumerate(sources)]


@operations.no_autograph
def agree(
    run: Session,
    variables: Sequence[Any],
    heading: str,
    more: Sequence[str] = (),
    always: bool = True,
) -> None:
    """Make sure that all processes mean the same variables, and have the same lines in `more`.

    All of them call it, in eager code or while a step is traced. Without `always`, it does nothing if they
    have agreed on all these variables before.
    """
    if run.size == 1 or run.handle is None:
        return
    variables = [each for each in variables if _is_variable(each)]
    known = [getattr(each, _NUMBER, (None, 0))[0] == run.generation for each in variables]
    if all(known) and not always:
        return
    for each, is_known in zip(variables, known, strict=True):
        if not is_known:
            _set_number(each, (None, None))
    lines = [*more, *(f"{label(each)} {_kind_of(each)}" for each in variables)]
    with tf.init_scope():
        operations.barrier(run, operations.listed(heading, lines))
    for each, is_known in zip(variables, known, strict=True):
        if not is_known:
            _set_number(each, (run.generation, run.numbered))
            run.numbered += 1


def _kind_of(variable: Any) -> str:
    """Return a variable's type, and its shape: of a part, that of the whole."""
    shape = (part_of(variable) or variable).shape
    return f"{tf.as_dtype(variable.dtype).name} {list(shape)}"


def _is_variable(thing: Any) -> bool:
    return isinstance(thing, (tf.Variable, keras.Variable))


def _set_number(variable: Any, number: tuple[Any, Any]) -> None:
    for each in both(variable):
        object.__setattr__(each, _NUMBER, number)

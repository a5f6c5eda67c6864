# SPDX-License-Identifier: Apache-2.0
"""Mark variables of which each process has a part, and say how the modules that divide them treat these."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import keras

from ...run.session import Session
from ...sync.base import Array, Gradients
from .operations import no_autograph

# The attribute of a variable of which this process has a part.
_PART = "_rdmatensor_part"


class Division:
    """A way to divide a model's variables.

    This class does not divide them: derive from it, and `mark` variables.
    """

    period = 1
    """How many steps lie between two exchanges of groups that train apart."""

    @no_autograph
    def prepare(self, optimizer: Any) -> None:
        """Prepare an optimizer for divided variables, in each trace; None: a tape.

        Raises UsageError if it cannot update them.
        """

    def gradients(
        self,
        run: Session,
        sync: Gradients,
        gradients: Sequence[Any],
        variables: Sequence[Any],
        name: str,
        names: Sequence[str],
    ) -> list[Any]:
        """Synchronize the gradients of variables, some of which are marked; `names` are their labels."""
        sync.names = names
        return list(sync.gradients(run, list(gradients), name))

    def finite(self, gradients: list[Any], name: str) -> list[Any]:
        """Let all processes see an infinity that one of them has in its part."""
        return gradients

    def senders(self, run: Session, root: int) -> tuple[Any, int] | None:
        """Return the processes that have the same parts, and who among them sends these for `root`.

        Return None if parts have no copies.
        """
        return None


class Part(Protocol):
    """The part of a variable that this process has."""

    @property
    def division(self) -> Division:
        """The way in which the model's variables are divided."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the whole variable, on which all processes agree."""

    def of(self, whole: Array) -> Array:
        """Return this process's part of an array."""

    def whole(self, variable: Any) -> Array | None:
        """Return the whole of a variable in rank 0, and None elsewhere. All processes call it."""

    def received(self, whole: Array | None, dtype: Any) -> Array:
        """Return this process's part of an array that rank 0 has; None elsewhere. All processes call it."""


def mark(variable: Any, part: Part) -> None:
    """Mark a variable as a part."""
    for each in both(variable):
        object.__setattr__(each, _PART, part)


def both(variable: Any) -> tuple[Any, ...]:
    """Return a variable of Keras with TensorFlow's: gradients are asked for with either."""
    return (variable, variable.value) if isinstance(variable, keras.Variable) else (variable,)


def part_of(variable: Any) -> Part | None:
    """Return which part of a variable this is; None if it is whole."""
    part: Part | None = getattr(variable, _PART, None)
    return part


def division_of(variables: Iterable[Any]) -> Division:
    """Return how the variables are divided, which is one way for all of a model."""
    return next((part.division for part in map(part_of, variables) if part), _WHOLE)


_WHOLE = Division()

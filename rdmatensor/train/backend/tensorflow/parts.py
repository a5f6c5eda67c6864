# SPDX-License-Identifier: Apache-2.0
"""Mark variables of which each process has a part, and say how the modules that divide them treat these."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import keras

from ...run.session import Session
from ...sync.base import Gradients
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

    def leading(self) -> AbstractContextManager[None]:
        """Let the other processes `follow` what a callback of rank 0 saves and loads in the block."""
        return nullcontext()

    def follow(self, model: Any, name: str) -> None:
        """Save and load parts of a model as callback `name` does in rank 0. Raises UsageError if it fails."""


@dataclass(frozen=True)
class Part:
    """The part of a variable that this process has."""

    division: Division
    shape: tuple[int, ...] | None
    """That of the whole variable, on which all processes agree; None if they need not."""


def mark(variable: Any, part: Part) -> None:
    """Say that the variable is a part."""
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

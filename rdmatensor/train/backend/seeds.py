# SPDX-License-Identifier: Apache-2.0
"""Give each process random numbers of its own, such as those of dropout, that go on where they were."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..run.session import Session
from .base import backend

_Array = npt.NDArray[Any]
# What Keras calls the state of a SeedGenerator: a seed, and a count of draws.
_NAME, _SHAPE = "seed_generator_state", (2,)


def is_seed(variable: Any) -> bool:
    """Return whether a variable is the state of one of Keras's SeedGenerators."""
    return (
        getattr(variable, "name", None) == _NAME
        and tuple(variable.shape) == _SHAPE
        and "int" in str(variable.dtype)
    )


class Streams:
    """The SeedGenerators whose states are among `variables`, and the one that Keras uses without a seed.

    All processes make it with the same variables, and call its methods together.
    """

    def __init__(self, run: Session, variables: Sequence[Any]) -> None:
        from keras.src.random.seed_generator import global_seed_generator

        self._run = run
        found = [*filter(is_seed, variables), global_seed_generator().state]
        self._states = list({id(each): each for each in found}.values())

    def part(self, root: int = 0) -> None:
        """Let streams differ that are equal in some processes, because these began with the same seed.

        Each process derives its own seed from that of `root`, so that the same program gets the same streams
        again. Streams that differ stay as they are.
        """
        rows = self.gather()
        for i, state in enumerate(self._states):
            seeds = rows[:, i, 0]
            if len(set(seeds)) < len(seeds):
                state.assign(_own(rows[root, i], self._run.rank, root))

    def part_alone(self) -> None:
        """Do what `part` did when this process was started before, without the others."""
        for state, value in zip(self._states, self._values(), strict=True):
            state.assign(_own(value, self._run.rank))

    def gather(self) -> _Array:
        """Return the states of all processes as int64, of shape (processes, streams, 2)."""
        detail = f"{len(self._states)} streams of random numbers"
        return backend().all_gather(self._run, self._values()[np.newaxis], detail)

    def resume(self, kept: Sequence[Any] | None) -> None:
        """Go on with the states that `gather` gave in an earlier program. Rank 0 has them, or None.

        With another number of processes, all streams are derived from rank 0's. Without fitting states,
        streams part that are equal.
        """
        size, shape = self._run.size, self._values().shape
        rows = np.zeros((size + 1, *shape), np.int64)
        if kept is not None and np.shape(kept)[1:] == shape:
            old = np.asarray(kept, np.int64)
            rows[0] = 1
            for rank in range(size):
                if len(old) == size:
                    rows[1 + rank] = old[rank]
                else:
                    rows[1 + rank] = [_own(each, rank) for each in old[0]]
        rows = backend().broadcast(self._run, rows, 0, "streams of random numbers")
        if not rows[0].all():
            self.part()
            return
        for state, value in zip(self._states, rows[1 + self._run.rank], strict=True):
            state.assign(value)

    def _values(self) -> _Array:
        return np.stack([np.asarray(each, np.int64) for each in self._states])


def _own(state: _Array, rank: int, root: int = 0) -> _Array:
    """Return the state with which a process goes on where `root` goes on with `state`."""
    if rank == root:
        return state
    seed = np.random.SeedSequence([int(state[0]) % (1 << 32), rank]).generate_state(1)[0] >> 1
    return np.array([seed, state[1]], np.int64)

# SPDX-License-Identifier: Apache-2.0
"""Let a synchronizer change the parameters between two steps, from inside TensorFlow's graph.

It also says what a backup keeps of a synchronizer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any

import numpy as np
import tensorflow as tf

from ....errors import UsageError
from ...run.membership import Membership
from ...run.rejoin import read_model
from ...sync.base import Array, Parameters, Synchronizer, average, having
from .operations import no_autograph

# Values of the step of the next exchange: the synchronizer has not begun.
_NOT_BEGUN = -1


# What lies at a multiple of this, tensors and variables use without a copy.
_ALIGNED = 64


def _apart(x: Array) -> Array:
    """Return a copy in memory that TensorFlow does not alias, because synchronizers change it later."""
    room = np.empty(x.nbytes + _ALIGNED, np.uint8)
    start = (_ALIGNED // 2 - room.ctypes.data) % _ALIGNED
    copy: Array = room[start : start + x.nbytes].view(x.dtype)
    np.copyto(copy, x)
    return copy


class Kept:
    """The state of one optimizer's synchronizer, which backups keep and a new group forgets."""

    def __init__(self, run: Membership, sync: Synchronizer) -> None:
        self._run = run
        self.sync = sync
        self.apart: dict[int, tuple[Any, Array]] = {}
        """While models are settled: variables, and what this process goes on with, by id."""
        self._fresh = _settings(sync)
        run.closing.append(self._leave)

    def _leave(self) -> None:
        """Close the synchronizer.

        It begins anew if the process joins again: others may have failed at another step.
        """
        self.sync.close()
        _reset(self.sync, self._fresh)

    def kept(self) -> dict[str, Array]:
        """Return what a backup keeps of the synchronizer."""
        state = {f"state {name}": np.asarray(each) for name, each in self.sync.state().items()}
        return {"kind": np.array(type(self.sync).__name__), **state}

    def restore(self, kept: Sequence[Mapping[str, Array]], rank: int) -> bool:
        """Take what `kept` gave in an earlier program.

        Return whether it was of the same kind of synchronizer.

        `kept` has this process's state, or those of all processes if there was another number of them. Raises
        UsageError if the synchronizer can only go on with as many as before.
        """
        if any(str(each.get("kind")) != type(self.sync).__name__ for each in kept):
            return False
        states: list[Mapping[str, Array]] = [having(each, "state ") for each in kept]
        if len(kept) > 1:
            states = [self.sync.regroup(states, rank, self._run.size)]
        self.sync.restore(states[0])
        return True


class Exchange(Kept):
    """The parameters of one optimizer as a vector, which the synchronizer changes when it is due."""

    sync: Parameters

    def __init__(self, run: Membership, sync: Parameters) -> None:
        super().__init__(run, sync)
        self._begun = False
        self._x: Array | None = None
        self._resumed: int | None = None  # the step of the next exchange, from a backup
        self.variables: list[Any] = []
        """The parameters, in the order of the vector, once a step has been traced."""
        # The graph asks this number, so that steps without an exchange copy nothing.
        with tf.init_scope(), tf.device("/CPU:0"):
            self._next = tf.Variable(_NOT_BEGUN, dtype=tf.int64, trainable=False)

    @no_autograph
    def before(self, variables: Sequence[Any]) -> None:
        """Begin, in the first step. Call it before the update."""
        self.sync.shapes = [tuple(each.shape) for each in variables]
        if [*map(id, variables)] != [*map(id, self.variables)]:
            self.variables = list(variables)
            if self._begun:  # other layers are trained from now on
                with tf.init_scope():
                    self._next.assign(_NOT_BEGUN)

        def begin() -> Any:
            first = tf.numpy_function(self._begin, [_joined(variables)], tf.int64, name="begin")
            return self._next.assign(tf.ensure_shape(first, []))

        tf.cond(self._next < 0, begin, lambda: tf.identity(self._next))

    @no_autograph
    def after(self, variables: Sequence[Any], step: Any, learning_rate: Any) -> None:
        """Exchange, if it is due. Call it after the update."""
        step, learning_rate = tf.cast(step, tf.int64), tf.cast(learning_rate, tf.float64)

        def exchange() -> Any:
            joined = _joined(variables)
            changed, following = tf.numpy_function(
                self._exchange,
                [joined, step, learning_rate],
                [joined.dtype, tf.int64],
                name="exchange",
            )
            sizes = [int(np.prod(each.shape)) for each in variables]
            parts = tf.split(tf.ensure_shape(changed, [sum(sizes)]), sizes)
            for variable, part in zip(variables, parts, strict=True):
                value = tf.reshape(part, variable.shape)
                variable.assign(tf.cast(value, variable.dtype))
            return self._next.assign(tf.ensure_shape(following, []))

        tf.cond(step >= self._next, exchange, lambda: tf.identity(self._next))

    def _leave(self) -> None:
        super()._leave()
        self._begun, self._resumed = False, None
        self._next.assign(_NOT_BEGUN)

    def _begin(self, x: Array) -> Any:
        self._run.check()
        if self._run.group is None and self._run.step == 0:
            raise UsageError(
                "this process has come back to a training under way: train with fit(callbacks=rt.callbacks())"
            )
        self._x = _apart(x)
        first = self.sync.begin(self._run, self._x)
        self._begun = True
        return np.int64(first if self._resumed is None else self._resumed)

    def come_back(self, variables: Sequence[Any]) -> int:
        """Begin, in eager code, with the model of another process. Return the step at which that was."""
        self.variables = list(variables)
        x = _joined(variables).numpy()
        self._run.step = read_model(self._run, x)
        self._assign(variables, x)
        self._next.assign(self._begin(x))
        return self._run.step

    def conclude(self, step: int) -> None:
        """Let the synchronizer bring the models together, in eager code, when training ends."""
        self.apart.clear()
        if not self._begun or self._x is None:
            return
        np.copyto(self._x, _joined(self.variables).numpy())
        self.sync.conclude(self._x, step)
        self._assign(self.variables, self._x)

    def settle(self, more: Sequence[Any]) -> None:
        """Set the parameters, and `more` variables, to their means over all processes, until `part`.

        Do nothing where models do not differ, or where processes do not wait for each other.
        """
        if not (self._begun and self.sync.apart) or self.apart:
            return
        variables = [*self.variables, *more]
        self.apart = {id(each): (each, np.array(each.numpy())) for each in variables}
        x = _joined(variables).numpy()
        if average(self._run, x, "the models, to look at them"):
            self._assign(variables, x)

    def part(self) -> None:
        """Give this process its own parameters back."""
        for variable, value in self.apart.values():
            variable.assign(value)
        self.apart.clear()

    @staticmethod
    def _assign(variables: Sequence[Any], x: Array) -> None:
        start = 0
        for variable in variables:
            end = start + int(np.prod(variable.shape))
            variable.assign(x[start:end].reshape(variable.shape))
            start = end

    def _exchange(self, x: Array, step: int, learning_rate: float) -> Any:
        self._run.check()
        assert self._x is not None
        np.copyto(self._x, x)
        following = self.sync.exchange(self._x, int(step), float(learning_rate))
        if following <= step:
            raise UsageError(f"{type(self.sync).__name__} wants step {following} after {step}")
        return self._x, np.int64(following)

    def kept(self) -> dict[str, Array]:
        """Return what a backup keeps: nothing before the first step."""
        return {"next": self._next.numpy(), **super().kept()} if self._begun else {}

    def restore(self, kept: Sequence[Mapping[str, Array]], rank: int) -> bool:
        """Take also the step of the next exchange."""
        fits = super().restore(kept, rank)
        if fits:
            self._resumed = int(kept[rank % len(kept)]["next"])
        return fits


def _settings(sync: Synchronizer) -> dict[str, Any] | None:
    """Return a copy of what a synchronizer has before it begins; None if that cannot be copied."""
    try:
        return deepcopy(vars(sync))
    except Exception:  # of a class of the user's, which may hold anything
        return None


def _reset(thing: Any, settings: dict[str, Any] | None) -> None:
    """Give a synchronizer back what it had before it began, but for groups.

    The objects of which it consists stay the same, because functions that have been traced hold them.
    """
    if settings is None:
        return
    before = dict(vars(thing))
    for name, value in before.items():
        if name not in settings and not isinstance(value, Membership):
            delattr(thing, name)
    for name, value in deepcopy(settings).items():
        held = before.get(name)
        if isinstance(held, Synchronizer) and type(held) is type(value):
            _reset(held, vars(value))
        elif not isinstance(held, Membership):
            setattr(thing, name, value)


def _joined(variables: Sequence[Any]) -> Any:
    values = [tf.convert_to_tensor(each) for each in variables]
    dtype = tf.float64 if any(each.dtype == tf.float64 for each in values) else tf.float32
    return tf.concat([tf.reshape(tf.cast(each, dtype), [-1]) for each in values], 0)

# SPDX-License-Identifier: Apache-2.0
"""Go on after processes were lost, by the names of Horovod's elastic programs, for every framework."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..errors import UsageError
from .reductions import HorovodInternalError, HostsUpdatedInterrupt


class State:
    """What an elastic program keeps between its steps, and copies to processes that come anew.

    `bcast_object` returns rank 0's object at every process; `get_rank` returns the rank. Not thread-safe.
    """

    def __init__(self, bcast_object: Callable[[Any], Any], get_rank: Callable[[], int]) -> None:
        self._bcast_object = bcast_object
        self._rank = get_rank
        self._reset_callbacks: list[Callable[[], Any]] = []

    def register_reset_callbacks(self, callbacks: list[Callable[[], Any]]) -> None:
        """Call these functions each time that the processes have met again, before they go on."""
        self._reset_callbacks.extend(callbacks)

    def on_reset(self) -> None:
        """Call reset() and the callbacks: the processes have met again."""
        self.reset()
        for callback in self._reset_callbacks:
            callback()

    def commit(self) -> None:
        """Keep the present values: restore() goes back to them."""
        self.save()
        self.check_host_updates()

    def check_host_updates(self) -> None:
        """Do nothing: as many processes as the launcher has started take part, and no others."""

    def save(self) -> None:
        """Keep the present values in memory."""
        raise NotImplementedError

    def restore(self) -> None:
        """Go back to the values that were kept last."""
        raise NotImplementedError

    def sync(self) -> None:
        """Take the values of rank 0, and keep them."""
        raise NotImplementedError

    def reset(self) -> None:
        """Prepare for another number or order of processes. It does nothing by default."""


class ObjectState(State):
    """Objects that pickle can copy, each an attribute by the name of its argument."""

    def __init__(
        self, bcast_object: Callable[[Any], Any], get_rank: Callable[[], int], **kwargs: Any
    ) -> None:
        super().__init__(bcast_object, get_rank)
        self._saved_state = kwargs
        self._set_attrs()

    def save(self) -> None:
        """Keep the present values in memory."""
        self._saved_state = {name: getattr(self, name) for name in self._saved_state}

    def restore(self) -> None:
        """Go back to the values that were kept last."""
        self._set_attrs()

    def sync(self) -> None:
        """Take the values of rank 0, and keep them. Raises HorovodInternalError if a process is lost."""
        if self._saved_state:
            self.save()
            self._saved_state = self._bcast_object(self._saved_state)
            self._set_attrs()

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Return a value by the name of its argument."""

    def _set_attrs(self) -> None:
        for name, value in self._saved_state.items():
            setattr(self, name, value)


def run_fn(func: Callable[..., Any], reset: Callable[[], object]) -> Callable[..., Any]:
    """Return `func` so that it is called anew, with what its state kept, after processes were lost.

    Its first argument is a State, which is synchronized first. `reset` lets this process meet the others
    again. Raises what `func` raises; HorovodInternalError only if `reset` does, because others do not come.
    A Disagreement is an error of the program, which would come again.
    """

    @functools.wraps(func)
    def wrapper(state: State, *args: Any, **kwargs: Any) -> Any:
        skip_sync = False
        while True:
            try:
                if not skip_sync:
                    state.sync()
                return func(state, *args, **kwargs)
            except HorovodInternalError as error:
                if isinstance(error, UsageError):
                    raise
                state.restore()
                skip_sync = False
            except HostsUpdatedInterrupt as interrupt:
                skip_sync = getattr(interrupt, "skip_sync", False)
            reset()
            state.on_reset()

    return wrapper

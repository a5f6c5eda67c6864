# SPDX-License-Identifier: Apache-2.0
"""Share parameters in strips, each of which has an owner that applies what others send for it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from ...store import Arrival
from .base import Array, Parameters, same_size
from .members import Members

if TYPE_CHECKING:
    from ..run.membership import Membership

# Numbers of 8 bytes that are published before a strip, beside one for each process.
_VERSION = 1


def recut(states: Sequence[Mapping[str, Array]], name: str, rank: int, size: int) -> Array:
    """Return the strip of process `rank` of `size`, from what processes kept of all strips as `name`."""
    whole: Array = np.concatenate([each[name] for each in states])
    return whole[rank * whole.size // size : (rank + 1) * whole.size // size]


class Strips:
    """A vector that all processes share. Each owns a strip: it alone changes it, on a thread of its own too.

    With a strip, its owner publishes `version` and the number that came with the last message of each process
    (`heard`). Use `lock` for `own`, `version` and `heard`.
    """

    def __init__(
        self,
        members: Membership,
        x: Array,
        take: Callable[[int, int, Array], None],
        idle: Callable[[], None] = lambda: None,
        pause: float = 1.0,
    ) -> None:
        """`take` gets what arrives: from whom, with which number, and the data, which it must not keep.

        It is called under the lock; `idle` is, too, after pauses.
        """
        self.size, self.rank = members.size, members.rank
        self._bounds = [rank * x.size // members.size for rank in range(members.size + 1)]
        longest = max(self.part(rank).stop - self.part(rank).start for rank in range(members.size))
        self.lock = threading.Lock()
        self.own = x[self.part(members.rank)].copy()
        self.version = 0
        self.heard = np.zeros(members.size, np.uint64)
        self._head = 8 * (_VERSION + members.size)
        self._sent = np.zeros(self._head + longest * x.itemsize, np.uint8)
        self._read = np.zeros_like(self._sent)
        self._take, self._idle = take, idle
        self.members = Members(members, self._sent.nbytes, longest * x.itemsize)
        self._pause = pause
        self.publish()

    def restore(self, own: Array) -> None:
        """Begin with a strip from a backup, as a version that nobody has read."""
        with self.lock:
            self.own[:] = same_size(own, self.own.size)
            self.version = 1
            self.publish()

    def serve(self) -> None:
        """Begin to take what arrives. Call it when `take` can be called."""
        self.members.serve(self._serve, self._pause)

    def part(self, rank: int) -> slice:
        """Return where the strip of a process lies in the vector."""
        return slice(self._bounds[rank], self._bounds[rank + 1])

    @property
    def owners(self) -> list[int]:
        """The processes whose strips can be used, this one first; then each begins with another one."""
        return sorted(
            [self.rank, *self.members.reachable], key=lambda rank: (rank - self.rank) % self.size
        )

    def publish(self) -> None:
        """Make the own strip, its version and `heard` visible. Call it under the lock."""
        words = self._sent[: self._head].view(np.uint64)
        words[0] = self.version
        words[_VERSION:] = self.heard
        end = self._head + self.own.nbytes
        self._sent[self._head : end] = self.own.view(np.uint8)
        self.members.store.publish(self._sent, self.version)

    def read(self, rank: int) -> tuple[int, Array, Array] | None:
        """Return version, `heard` and data of a strip; None if its owner is lost.

        They are valid until the next call.
        """
        if rank == self.rank:
            with self.lock:
                return self.version, self.heard.copy(), self.own.copy()
        if self.members.pull(rank, self._read) is None:
            return None
        words = self._read[: self._head].view(np.uint64)
        part = self.part(rank)
        end = self._head + (part.stop - part.start) * self.own.itemsize
        return int(words[0]), words[_VERSION:], self._read[self._head : end].view(self.own.dtype)

    def send(self, rank: int, data: Array, number: int) -> bool:
        """Send to the owner of a strip. Return False if it is busy with the last message, or lost."""
        if rank != self.rank:
            return self.members.push(rank, np.ascontiguousarray(data), number)
        with self.lock:
            self._take(rank, number, data)
        return True

    def _serve(self, arrival: Arrival | None) -> None:
        with self.lock:
            if arrival is None:
                self._idle()
            elif arrival.data.nbytes == self.own.nbytes:
                self._take(arrival.rank, arrival.mark, arrival.data.view(self.own.dtype))


class Owned(Parameters):
    """Parameters that are common to all processes, each of which owns a strip. Nobody waits for all."""

    waits: ClassVar[bool] = False
    _strips: Strips | None = None
    _kept: Mapping[str, Array] = {}
    """What a backup had, until it begins."""

    def _open(self, strips: Strips) -> None:
        """Begin with these strips, the own one as a backup has kept it."""
        self._strips = strips
        if self._kept:
            strips.restore(self._kept["strip"])
        strips.serve()

    def state(self) -> Mapping[str, Array]:
        """Return the own strip."""
        with self.strips.lock:
            return {"strip": self.strips.own.copy()}

    def restore(self, state: Mapping[str, Array]) -> None:
        """Keep the state until it begins."""
        self._kept = state

    def regroup(
        self, states: Sequence[Mapping[str, Array]], rank: int, size: int
    ) -> Mapping[str, Array]:
        """Return a strip of the whole."""
        return {"strip": recut(states, "strip", rank, size)}

    @property
    def strips(self) -> Strips:
        """The strips, once it has begun."""
        assert self._strips is not None
        return self._strips

    @property
    def members(self) -> Members:
        """The other processes."""
        return self.strips.members

    def finish(self) -> None:
        """Serve the own strip until all have finished."""
        if self._strips is not None:
            self._strips.members.wait_for_all()

    def close(self) -> None:
        """Close the store of strips."""
        if self._strips is not None:
            self._strips.members.close()

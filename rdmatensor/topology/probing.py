# SPDX-License-Identifier: Apache-2.0
"""Find the links between the members of a group by moving bytes over them.

First each pair has the network alone, then each member sends to all others and receives from all, and
then all members send at once, in circles. Pairs that are slower together than alone share a link.
"""

from __future__ import annotations

import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from itertools import combinations, cycle
from typing import Any

import numpy as np

from .._api.remote import Capability
from ..errors import DeadlineExceeded, RdmaError, UsageError
from ..group import Group
from .agree import from_all
from .inferred import ALIKE, Figures, Flow, infer
from .machine import details
from .model import Matrix, Member, Topology

_FIRST, _MOST = 1 << 14, 1 << 22  # bytes of a transfer
_PLACES = 8  # in memory that transfers take in turn
_DEPTH = 4  # transfers under way
_PIECES = 16  # of a flow: no queue of a transport is shorter
_PINGS = 20
_LINE = 64  # bytes between two members' counters
_STAMP = 16  # bytes at a piece's end: its numbers in a word, and the inverted word
_PART = 32  # bits of the piece's number; those above are the measurement's


def probe(group: Group, seconds: float = 0.1, timeout: float = 60.0) -> Topology:
    """Measure the links between the members of a group, and return the same topology at each of them.

    Every member calls it, without other operations under way. Among n members it takes about `seconds` for
    each of n * (n + 2) measurements, and longer where many share a link. `timeout`, in seconds, bounds each
    wait. Raises UsageError if `seconds` is not between 0 and 60, ConnectionLost if a member is gone,
    DeadlineExceeded, RdmaError if another member failed, and the errors of Device.connect().
    """
    with Prober(group, seconds, timeout) as prober:
        alone, latency = prober.pairs()
        if group.size < 3:  # nothing is shared
            return infer(
                "probed", prober.members, Figures(alone, latency, alone.sum(1), alone.sum(0), alone)
            )
        fans, circles = prober.fans(), prober.circles()
        figures = Figures(alone, latency, *fans, circles, prober.conflicts(alone, circles))
        return infer("probed", prober.members, figures)


class Prober:
    """Connections between all members of a group, for measurements. Every member opens one, and closes it."""

    def __init__(self, group: Group, seconds: float = 0.1, timeout: float = 60.0) -> None:
        if not 0 < seconds < 60:
            raise UsageError(f"seconds is {seconds}: give a number above 0 and below 60")
        self._group, self._seconds, self._timeout = group, seconds, timeout
        self._device = device = group._device
        size = self._size = group.size
        self._region = device.allocate(2 * size * _LINE + _PLACES * _MOST)
        self._region.array[:] = 1  # where pages are not there yet, nothing would be read
        lines = self._region.array[: 2 * size * _LINE].view(np.int64).reshape(2, size, _LINE // 8)
        lines[:] = 0
        self._counters, self._announced = lines[0, :, 0], lines[1, :, :3]
        self._landing = np.ones(_PLACES * _MOST, np.uint8)
        # In both, each other member has a part of its own for what is written.
        self._share = _PLACES * _MOST // size // _STAMP * _STAMP
        self._measured = 0
        self._remotes: list[Any] = [None] * size
        self._regions: list[Any] = [None] * size
        self._met = [0] * size  # how often, with each member
        self._rates = np.zeros((size, size))  # as far as they are known
        verbs = device.transports.get("verbs")
        port = verbs.text.partition(" ")[0] if verbs is not None and verbs.usable else ""
        host = device.address.rpartition(":")[0]
        told = from_all(
            group,
            [device.address, self._region.key, socket.gethostname(), details(host, port)],
            timeout,
        )
        self.members = [Member(f"rank{rank}", each[2], each[3]) for rank, each in enumerate(told)]
        """By rank."""
        self._together(np.zeros(0), lambda: self._connect(told))
        maps = [
            each is not None and bool(each.capabilities & Capability.MAP) for each in self._remotes
        ]
        # Operations of groups read where memory can be mapped, and write elsewhere.
        self._reads = from_all(group, maps, timeout)

    def __enter__(self) -> Prober:
        return self

    def __exit__(self, *_: object) -> None:
        for each in self._remotes:
            if each is not None:
                each.close()
        self._region.close()

    def _connect(self, told: list[Any]) -> None:
        for rank, (address, key, *_) in enumerate(told):
            if rank != self._group.rank:
                self._remotes[rank] = self._device.connect(address, self._timeout)
                self._regions[rank] = self._remotes[rank].region(key, self._timeout)

    def pairs(self) -> tuple[Matrix, Matrix]:
        """Return bytes per second and seconds from each member to each other one.

        One pair is measured at a time, in both directions at once.
        """
        shape = 2, self._size, self._size
        found = np.zeros(shape)
        for one in range(self._size):
            for other in range(one + 1, self._size):
                table = np.zeros(shape)
                found += self._together(table, lambda: self._pair(one, other, table))  # noqa: B023
        self._rates = found[0]
        return found[0], found[1]

    def fans(self) -> tuple[Matrix, Matrix]:
        """Return what each member sends in all when it sends to all others, and receives from all."""
        found = np.zeros((2, self._size))
        for rank in range(self._size):
            others = [each for each in range(self._size) if each != rank]
            found[0, rank] = self._measure([(rank, each) for each in others]).sum()
            found[1, rank] = self._measure([(each, rank) for each in others]).sum()
        return found[0], found[1]

    def circles(self) -> Matrix:
        """Return what each member sends to each other one while all send, each to one."""
        found = np.zeros((self._size, self._size))
        for step in range(1, self._size):
            found += self._measure(
                [(rank, (rank + step) % self._size) for rank in range(self._size)]
            )
        return found

    def conflicts(self, alone: Matrix, circles: Matrix) -> list[tuple[Flow, Flow]]:
        """Return which two flows of the slowest circle slow each other down."""
        size, ranks = self._size, np.arange(self._size)
        shares = [
            circles[ranks, (ranks + step) % size].sum() / alone[ranks, (ranks + step) % size].sum()
            for step in range(1, size)
        ]
        step = 1 + int(np.argmin(shares))
        flows = [(rank, (rank + step) % size) for rank in range(size)]
        slow = [each for each in flows if circles[each] < ALIKE * alone[each]]
        found = []
        for one, other in combinations(slow, 2):
            if set(one) & set(other):
                continue  # ports tell about those
            rates = self._measure([one, other])
            if rates[one] + rates[other] < ALIKE * (alone[one] + alone[other]):
                found.append((one, other))
        return found

    def _measure(self, flows: Sequence[Flow]) -> Matrix:
        """Return the rates of these flows, which run at the same time. All members get the same."""
        rates = np.zeros((self._size, self._size))
        return self._together(rates, lambda: self._stream_all(flows, rates))

    def _together(self, table: Matrix, act: Callable[[], None]) -> Matrix:
        """Do something at all members at once, and return the sum of their tables.

        An error at one of them is raised at all.
        """
        self._announced[:] = 0  # nobody writes yet
        self._measured += 1
        self._group.barrier(timeout=self._timeout)
        error: RdmaError | None = None
        try:
            act()
        except RdmaError as problem:
            error = problem
        told = np.append(table.ravel(), float(error is not None))
        told = self._group.all_reduce(told, timeout=self._timeout)
        if error is not None:
            raise error
        if told[-1]:
            raise RdmaError("another member could not probe its links; its error says why")
        return told[:-1].reshape(table.shape)

    def _pair(self, one: int, other: int, table: Matrix) -> None:
        """Fill in the pair's rates and latencies, if this is one of its members."""
        rank, flows = self._group.rank, [(one, other), (other, one)]
        if rank not in (one, other):
            return
        lap = self._ping(one, other)
        if rank == one:
            table[1, one, other] = table[1, other, one] = lap / 2
        for each in flows:
            if self._moves(each):
                self._rates[each] = self._sample(each)
            self._meet(other if rank == one else one)
        self._stream_all(flows, table[0])

    def _moves(self, flow: Flow) -> bool:
        """Return whether this member writes, or reads, what flows."""
        source, target = flow
        return self._group.rank == (target if self._reads[target][source] else source)

    def _stream_all(self, flows: Sequence[Flow], rates: Matrix) -> None:
        """Run this member's part of the flows, and fill in the rates of those that end here."""
        errors: list[RdmaError] = []

        def act(flow: Flow) -> None:
            try:
                if flow[1] == self._group.rank:
                    rates[flow] = self._read(flow)
                else:
                    self._send(flow)
            except RdmaError as error:
                errors.append(error)

        threads = [threading.Thread(target=act, args=[each]) for each in flows if self._moves(each)]
        for thread in threads:
            thread.start()
        try:
            self._watch(
                [x for x in flows if x[1] == self._group.rank and not self._moves(x)], rates
            )
        finally:
            for thread in threads:
                thread.join()
        if errors:
            raise errors[0]

    def _mover(self, flow: Flow) -> Callable[[int], Any]:
        """Return a function that moves so many bytes, through all of the memory in turn: caches are not the
        link.
        """
        source, target = flow
        writes = source == self._group.rank
        region = self._regions[target if writes else source]
        # Threads that read from several members begin at several places.
        places = [(each + source) % _PLACES * _MOST for each in range(_PLACES)]
        offsets = cycle(places)

        def move(nbytes: int) -> Any:
            at = next(offsets)
            act = region.write if writes else region.read_into
            return act(self._landing[at : at + nbytes], 2 * self._size * _LINE + at)

        return move

    def _sample(self, flow: Flow) -> float:
        """Return bytes per second of an undisturbed flow: transfers grow until they take long."""
        move, rate, nbytes = self._mover(flow), 0.0, _FIRST
        # The first ones open paths, and map pages.
        for _ in range(_PLACES if self._reads[flow[1]][flow[0]] else 1):
            move(_MOST if self._reads[flow[1]][flow[0]] else nbytes).wait(self._timeout)
        end = time.monotonic() + self._seconds / 2
        while True:
            began = time.monotonic()
            for each in [move(nbytes) for _ in range(_DEPTH)]:
                each.wait(self._timeout)
            took = max(time.monotonic() - began, 1e-9)
            rate = max(rate, _DEPTH * nbytes / took)
            if time.monotonic() > end or took > self._seconds / 4:
                return rate
            nbytes = min(2 * nbytes, _MOST)

    def _pieces(self, flow: Flow) -> tuple[int, int]:
        """Return the size and the number of the transfers that keep a flow busy."""
        whole = self._rates[flow] * self._seconds
        nbytes = int(min(max(whole / _PIECES, _FIRST / 4), _MOST))
        return nbytes, max(int(whole / nbytes), 4)

    def _send(self, flow: Flow) -> None:
        """Write what the flow alone would move in time, in pieces that bear their numbers.

        Writes may overtake each other, so no counter can follow them. All that have a place are posted at
        once: in a window, flows of opposite directions would hold up each other's completions.
        """
        nbytes, count = self._pieces(flow)
        nbytes = min(nbytes, self._share) // _STAMP * _STAMP
        places = min(count, self._share // nbytes)
        source = self._landing[flow[1] * self._share :][: places * nbytes].reshape(places, nbytes)
        region, at = self._regions[flow[1]], 2 * self._size * _LINE + flow[0] * self._share

        def announce(number: int) -> None:
            told = np.array([nbytes, places, number])
            region.write(told, (self._size + flow[0]) * _LINE).wait(self._timeout)

        announce(count)
        end = time.monotonic() + 2 * self._seconds
        posted: list[Any] = []
        for number in range(count):
            if number >= places:
                posted[number - places].wait(self._timeout)
            piece = source[number % places]
            word = self._measured << _PART | number
            piece[-_STAMP:].view(np.int64)[:] = word, ~word
            posted.append(region.write(piece, at + number % places * nbytes))
            if time.monotonic() > end:
                break
        for each in posted:
            each.wait(self._timeout)
        announce(len(posted))

    def _pieces_here(self, flow: Flow) -> tuple[int, int, int]:
        """Return the size of the pieces that others write here, how many came, and will come."""
        nbytes, places, count = told = self._announced[flow[0]].tolist()
        if not all(told):  # they come one by one, in any order
            return 0, 0, 1
        at = 2 * self._size * _LINE + flow[0] * self._share
        pieces = self._region.array[at : at + places * nbytes].reshape(places, nbytes)
        # Of a piece that is arriving, part of the stamp is what lay there before.
        words, inverted = pieces[:, -_STAMP:].view(np.int64).T.copy()
        whole = (words == ~inverted) & (words >> _PART == self._measured)
        numbers = words[whole] & ((1 << _PART) - 1)
        return nbytes, int((numbers // places + 1).sum()), count

    def _watch(self, flows: Sequence[Flow], rates: Matrix) -> None:
        """Fill in the rates of flows that others write here, while all of them move."""
        begin = time.monotonic()
        marks: dict[Flow, list[tuple[float, int]]] = {each: [] for each in flows}
        moving = set(flows)
        while moving:
            now = time.monotonic()
            for flow in list(moving):
                nbytes, came, count = self._pieces_here(flow)
                moved = came * nbytes
                seen = marks[flow]
                if moved > (seen[-1][1] if seen else 0):
                    seen[1:] = [(now, moved)]  # the first, and the newest
                if came == count or (len(seen) > 1 and now > begin + self._seconds):
                    moving.remove(flow)
            if now > begin + self._timeout:
                raise DeadlineExceeded("a member does not send")
            time.sleep(self._seconds / 500)
        for flow, seen in marks.items():
            (began, before), (ended, moved) = (begin, 0) if len(seen) < 2 else seen[0], seen[-1]
            rates[flow] = (moved - before) / max(ended - began, 1e-9)

    def _read(self, flow: Flow) -> float:
        """Read for some seconds. Return bytes per second."""
        nbytes, _ = self._pieces(flow)
        move = self._mover(flow)
        waiting: deque[Any] = deque()
        begin, moved = time.monotonic(), 0
        while time.monotonic() < begin + self._seconds:
            waiting.append(move(nbytes))
            if len(waiting) == _DEPTH:
                waiting.popleft().wait(self._timeout)
                moved += nbytes
        for each in waiting:
            each.wait(self._timeout)
            moved += nbytes
        return moved / (time.monotonic() - begin)

    def _ping(self, one: int, other: int) -> float:
        """Return the shortest time there and back, at the first of two members."""
        first = self._group.rank == one
        peer = other if first else one
        best = np.inf
        for _ in range(_PINGS):
            began = time.monotonic()
            self._meet(peer, first)
            best = min(best, time.monotonic() - began)
        return best

    def _meet(self, peer: int, first: bool = True) -> None:
        """Wait until the peer calls it too."""
        self._met[peer] += 1
        if not first:
            self._await(peer)
        self._regions[peer].write(np.array([self._met[peer]]), self._group.rank * _LINE).wait(
            self._timeout
        )
        if first:
            self._await(peer)

    def _await(self, peer: int) -> None:
        end = time.monotonic() + self._timeout
        while self._counters[peer] < self._met[peer]:
            if time.monotonic() > end:
                raise DeadlineExceeded(
                    f"rank {peer} did not answer within {self._timeout} s", "DEADLINE"
                )
            time.sleep(0)

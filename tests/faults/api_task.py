# SPDX-License-Identifier: Apache-2.0
"""One process of the API's part of chaos.py: random operations on the other processes' memory, with
checksums, and random collective operations. Runs in a peer of tests/support/nursery.py."""

from __future__ import annotations

import gc
import random
import struct
import threading
import time
import zlib
from collections import Counter
from typing import Any

import numpy as np

import rdmatensor
from rdmatensor import RemoteDevice
from support.group_checks import arenas, check, random_trees
from support.usage import memory_sizes
from support.usage import usage as all_usage

SLAB = 4 << 20  # of the memory of groups
AREA = 1 << 18
HEAD = struct.Struct("<QII")  # number, of the connection that it was sent on; checksum
WAIT_S = 8.0
KINDS = ("all_reduce", "all_gather", "broadcast", "reduce_scatter", "all_to_all")
ROUND = 40  # operations at most along the same trees


def usage() -> dict[str, int]:
    """What this process holds of the system, and apart from it the slabs of groups."""
    held, slabs = all_usage(), memory_sizes().count(SLAB)
    return held | {
        "descriptors": held["descriptors"] - slabs,
        "mappings": held["mappings"] - slabs,
        "slabs": slabs,
    }


class Member:
    """A device, a region with an area for each other member, and connections that are made anew."""

    def __init__(self, device: rdmatensor.Device, rank: int, addresses: list[str]) -> None:
        self.outcomes: Counter[str] = Counter()
        self._device, self._rank, self._addresses = device, rank, addresses
        self._region = device.allocate(AREA * len(addresses), name="areas")
        self._links: dict[int, _Link] = {}
        self._wrong: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reading = True
        self._reader.start()

    # ---- one-sided operations ------------------------------------------------------------------------

    def play(self, seed: int, seconds: float) -> dict[str, int]:
        """Random operations for a while; how often each ended how."""
        dice = random.Random(seed)
        self.outcomes.clear()
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            other = dice.randrange(len(self._addresses) - 1)
            other += other >= self._rank
            try:
                self._link(other).operate(dice)
                self.outcomes["ok"] += 1
            except rdmatensor.RdmaError as error:
                self.outcomes[f"{type(error).__name__} {error.status}"] += 1
                if isinstance(error, rdmatensor.ConnectionFailure):
                    self._leave(other)
        assert not self._wrong, self._wrong
        return dict(self.outcomes)

    def leave_all(self) -> None:
        """Closes every connection, also those that others made."""
        for other in list(self._links):
            self._leave(other)
        for remote in list(self._device._remotes.values()):
            remote.close()
        # What was pending keeps its buffers, and the peer's memory, until the device is used again.
        closing = self._device._closing_remotes
        closing[:] = [remote for remote in closing if not remote._ended()]
        gc.collect()

    def holds(self) -> dict[str, Any]:
        """What may explain memory that is still held."""
        device = self._device
        alive = [each for each in gc.get_objects() if isinstance(each, RemoteDevice)]
        return {
            "alive": [(repr(each), each._ended(), len(gc.get_referrers(each))) for each in alive],
            "remotes": len(device._remotes),
            "closing": len(device._closing_remotes),
            "owned": len(device._owned),
            "groups": len(device._groups),
            "regions": device.stats().regions,
            "sizes": memory_sizes(),
        }

    def _link(self, other: int) -> _Link:
        if other not in self._links:
            remote = self._device.connect(self._addresses[other], timeout=3.0)
            try:
                self._links[other] = _Link(remote, self._rank)
            except rdmatensor.RdmaError:
                remote.close()
                raise
        return self._links[other]

    def _leave(self, other: int) -> None:
        link = self._links.pop(other, None)
        if link:
            link.close()

    def _read(self) -> None:
        """Notifications come whole, once and in order."""
        last: dict[tuple[int, int], int] = {}
        while self._reading:
            try:
                told = self._device.next_notification(0.2)
            except rdmatensor.DeadlineExceeded:
                continue
            except rdmatensor.RdmaError:
                return
            number, connection, checksum = HEAD.unpack_from(told.payload)
            if zlib.crc32(told.payload[HEAD.size :]) != checksum:
                self._wrong.append(f"notification {number} is damaged")
            key = (told.source.generation, connection)
            if number != last.get(key, 0) + 1:
                self._wrong.append(f"notification {number} came after {last.get(key, 0)}")
            last[key] = number
            del told  # it would keep the memory of its source until the next one comes

    # ---- groups ----------------------------------------------------------------------------------------

    def join(self, name: str) -> str:
        """Joins a group of all; how it ended."""
        self._group: Any = None
        try:
            self._group = rdmatensor.Group(
                self._device, self._rank, len(self._addresses), self._addresses[0], name, timeout=15
            )
        except rdmatensor.RdmaError as error:
            return f"{type(error).__name__} {error.status}"
        return "ok"

    def collect(self, seed: int, seconds: float) -> dict[str, int]:
        """Random collective operations, the same as everywhere, until one fails or a while is over.

        Some go along random trees, which are replaced now and then.
        """
        dice = random.Random(seed)
        outcomes: Counter[str] = Counter()
        end = time.monotonic() + seconds
        try:
            while True:
                trees = random_trees(self._group.size, dice.randrange(1 << 30))
                self._group.use_trees(trees, timeout=WAIT_S)
                outcomes["ok, new trees"] += 1
                for _ in range(dice.randrange(1, ROUND)):
                    outcomes[self._collect_once(dice)] += 1
                    # All stop after the same operation.
                    more = np.array([int(time.monotonic() < end)], "int32")
                    if not self._group.all_reduce(more, op="min", timeout=WAIT_S)[0]:
                        return dict(outcomes)
        except rdmatensor.RdmaError as error:
            outcomes[f"{type(error).__name__} {error.status}"] += 1
            return dict(outcomes)

    def _collect_once(self, dice: random.Random) -> str:
        group = self._group
        kind = dice.choice(KINDS)
        count = dice.choice((1, 60, 2000, 120000)) * group.size
        registered = dice.random() < 0.5 and count > 10000
        options: dict[str, Any] = {"algorithm": dice.choice(("auto", "trees")), "timeout": WAIT_S}
        if kind == "broadcast":
            options["root"] = dice.randrange(group.size)
        form = "in place" if kind == "broadcast" else "out"
        check(group, kind, "float32", count, form, registered, **options)
        return f"ok, {options['algorithm']}"

    def part(self) -> None:
        """Leaves the group, if it was joined."""
        if self._group is not None:
            self._group.close()
        self._group = None
        arenas.clear()
        gc.collect()


class _Link:
    """A connection to another member, and its area there."""

    _numbers = 0

    def __init__(self, remote: rdmatensor.RemoteDevice, rank: int) -> None:
        _Link._numbers += 1
        self._connection = _Link._numbers
        self._remote, self._start = remote, AREA * rank
        self._areas = remote.region("areas", timeout=3.0)
        self._number = 0

    def close(self) -> None:
        self._areas.close()
        self._remote.close()

    def operate(self, dice: random.Random) -> None:
        """One random operation; AssertionError if what comes back is not what was sent."""
        dice.choice([self._write_and_read, self._notify, self._batch, self._allocate])(dice)

    def _write_and_read(self, dice: random.Random) -> None:
        sent = np.frombuffer(dice.randbytes(dice.choice((1, 100, 5000, 1 << 17))), "uint8")
        at = self._start + dice.randrange(AREA - sent.size)
        self._areas.write(sent, at).wait(WAIT_S)
        back = self._areas.read(at, sent.size, WAIT_S)
        assert zlib.crc32(back.tobytes()) == zlib.crc32(sent.tobytes()), (
            f"{sent.size} bytes came back otherwise"
        )

    def _notify(self, dice: random.Random) -> None:
        content = dice.randbytes(dice.choice((0, 50, 3000)))
        self._number += 1
        head = HEAD.pack(self._number, self._connection, zlib.crc32(content))
        self._remote.notify(head + content).wait(WAIT_S)

    def _batch(self, dice: random.Random) -> None:
        batch = self._remote.batch()
        parts = [np.frombuffer(dice.randbytes(700), "uint8") for _ in range(5)]
        back = [np.empty(700, "uint8") for _ in parts]
        for index, part in enumerate(parts):
            batch.write(self._areas, part, self._start + 700 * index)
        for index, into in enumerate(back):
            batch.read_into(self._areas, into, self._start + 700 * index)
        self._remote.post(batch).wait(WAIT_S)
        assert [each.tobytes() for each in back] == [each.tobytes() for each in parts]

    def _allocate(self, dice: random.Random) -> None:
        with self._remote.allocate(4096, timeout=WAIT_S) as memory:
            memory.write(b"x" * 4096).wait(WAIT_S)
            assert memory.read(4095, 1, WAIT_S)[0] == ord("x")

# SPDX-License-Identifier: Apache-2.0
"""Let the processes of a launcher meet, and meet again after some were lost and started anew."""

from __future__ import annotations

import json
import time
import uuid
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from ...train.run.roles import Role
from ..reductions import HorovodInternalError

# So long the others may take to come: to be started anew, and to import what they need.
_COME_S = 600.0
# So long one that has come may take to say that it is still there.
_ANSWER_S = 10.0
# So long members may take to connect, once all have said so.
_CONNECT = timedelta(seconds=60)
_OPERATION = timedelta(minutes=30)
_LOOK_S = 0.02


class Meeting:
    """The place where processes form the default process group of torch, as often as they have to.

    The process of the launcher's rank 0 has the store, at MASTER_ADDR and MASTER_PORT, and calls the roll.
    Who comes has a token, new each time, so that a process that was started anew is not taken for the one
    before. Not thread-safe.
    """

    def __init__(self, role: Role) -> None:
        self._role = role
        self._store: Any = None
        self._called = 0
        self._tokens: dict[int, str] = {}
        """Those of the last roll, by the launcher's ranks, at the process that calls it."""

    def meet(self, before: int | None) -> None:
        """Block until all processes have come and have formed the group.

        Those with a rank `before` come first, in the order of these ranks. Raises HorovodInternalError, which
        names who does not come, and DistBackendError if they cannot form the group.
        """
        until = time.monotonic() + _COME_S
        ranks: list[int] = []
        while not ranks:
            try:
                store = self._connected()
                name, ranks = self._agree(store, before, until)
            except dist.DistNetworkError as error:
                self._store = None  # its process was lost, and may be started anew
                if time.monotonic() > until:
                    raise HorovodInternalError(f"rank 0 cannot be reached: {error}") from error
                time.sleep(_LOOK_S)
        self._form(dist.PrefixStore(name, store), ranks.index(self._role.rank))

    def _connected(self) -> Any:
        if self._store is None:
            role, store = self._role, dist.HashStore()
            if role.root:
                # torchrun has a store there already.
                limit = timedelta(seconds=_COME_S)
                store, _, _ = next(dist.rendezvous("env://", role.rank, role.size, timeout=limit))
            self._store = dist.PrefixStore("rdmatensor.horovod", store)
        return self._store

    def _agree(self, store: Any, before: int | None, until: float) -> tuple[str, list[int]]:
        """Return the name of the group and the launcher's ranks of its members, in their order.

        There are none if somebody who had come was lost.
        """
        token = uuid.uuid4().hex
        if self._role.rank == 0:
            return self._call(store, (token, before), until)
        store.set(f"here {self._role.rank}", json.dumps([token, before]))
        name, problem = _value(store, f"roll {token}", until)
        if problem:
            raise HorovodInternalError(problem)
        store.set(f"still here {name} {self._role.rank}", "")
        # Rank 0 asks one after the other.
        answered = time.monotonic() + _ANSWER_S * self._role.size
        return name, _value(store, f"ranks {name}", answered)

    def _call(self, store: Any, own: tuple[str, int | None], until: float) -> tuple[str, list[int]]:
        """Wait until all have come, ask whether they are still there, and tell them the outcome."""
        others = range(1, self._role.size)
        came = {each: self._arrival(store, each, until) for each in others}
        missing = [str(each) for each, found in came.items() if found is None]
        problem = ""
        if missing:
            problem = f"processes {', '.join(missing)} have not come within {_COME_S:g} s"
        name = f"group {self._called} {own[0]}"
        self._called += 1
        places = {0: own} | {each: found for each, found in came.items() if found is not None}
        for each, (token, _) in places.items():
            self._tokens[each] = token
            store.set(f"roll {token}", json.dumps([name, problem]))
        if problem:
            raise HorovodInternalError(problem)
        ranks = sorted(places, key=lambda each: _order(each, places[each][1]))
        for each in others:
            if not _comes(store, f"still here {name} {each}", time.monotonic() + _ANSWER_S):
                ranks = []
        store.set(f"ranks {name}", json.dumps(ranks))
        return name, ranks

    def _arrival(self, store: Any, rank: int, until: float) -> tuple[str, int | None] | None:
        """Return the token and the former rank of a process that has come anew; None if none does."""
        key = f"here {rank}"
        while _comes(store, key, until):
            token, before = json.loads(store.get(key))
            if token != self._tokens.get(rank):
                return token, before
            time.sleep(_LOOK_S)
        return None

    def _form(self, store: Any, rank: int) -> None:
        dist.init_process_group(
            "rdmatensor", store=store, rank=rank, world_size=self._role.size, timeout=_CONNECT
        )
        group: Any = dist.group.WORLD
        group._get_backend(torch.device("cpu")).set_timeout(_OPERATION)


def _order(rank: int, before: int | None) -> tuple[bool, int]:
    return before is None, rank if before is None else before


def _comes(store: Any, key: str, until: float) -> bool:
    """Return whether a key is in the store before the time `until`."""
    left = until - time.monotonic()
    if left <= 0:
        return False
    try:
        store.wait([key], timedelta(seconds=left))
    except dist.DistStoreError:
        return False
    return True


def _value(store: Any, key: str, until: float) -> Any:
    """Return what rank 0 writes. Raises HorovodInternalError if it does not."""
    if not _comes(store, key, until):
        raise HorovodInternalError("rank 0 has not called the roll: it was lost, or is busy")
    return json.loads(store.get(key))

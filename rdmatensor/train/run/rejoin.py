# SPDX-License-Identifier: Apache-2.0
"""Let a process that died come back to a training that goes on without it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from ..._api.region import Access
from ...device import Device
from ...errors import ConnectionFailure, DeadlineExceeded, RegionError, UsageError
from ...store import Store
from .membership import Array, Membership

_ADDRESS = 280
# Seconds within which a process that is there answers.
_ANSWER = 2.0
_UNREACHED = (ConnectionFailure, DeadlineExceeded, RegionError)


class Addresses:
    """The addresses of all processes' devices, where a process that comes back can read them."""

    def __init__(self, members: Membership) -> None:
        assert members.device is not None
        addresses = members.addresses
        self._texts = members.device.allocate(
            (len(addresses), _ADDRESS), access=Access.READ, name=f"{members.name} addresses"
        ).array
        for rank, address in enumerate(addresses):
            self[rank] = address

    def __setitem__(self, rank: int, address: str) -> None:
        self._texts[rank] = encoded(address)


def encoded(address: str) -> Array:
    """Return an address as a row of 280 bytes."""
    return np.frombuffer(address.encode()[:_ADDRESS].ljust(_ADDRESS, b"\0"), np.uint8)


def decoded(rows: Array) -> list[str]:
    """Return the addresses in rows of bytes."""
    return [row.tobytes().rstrip(b"\0").decode(errors="replace") for row in rows]


def find(device: Device, asked: Sequence[str], size: int) -> list[str]:
    """Return the addresses of the processes of a training under way; [] if there is none.

    All of `asked` are asked at the same time, because a host that is gone says nothing; the first one in
    their order that answers counts. Raises UsageError if the training has another number of processes than
    `size`.
    """
    different = list(dict.fromkeys(asked))
    if not different:
        return []
    with ThreadPoolExecutor(len(different), "rdmatensor-find") as pool:
        answers = list(pool.map(lambda address: _ask(device, address), different))
    for address, rows in zip(different, answers, strict=True):
        if rows is None:
            continue
        count = len(rows)
        if count != size:
            raise UsageError(
                f"{address} is in a training of {count} processes, and this process would be one of {size}: "
                f"start it as one of {count}, or start all again"
            )
        return decoded(rows)
    return []


def _ask(device: Device, address: str) -> Array | None:
    """Return the addresses that a process offers, as rows of bytes; None if it does not answer in time."""
    end = time.monotonic() + _ANSWER

    def left() -> float:
        return max(end - time.monotonic(), 0.0)

    try:
        region = device.connect(address, left()).region(f"{Membership.name} addresses", left())
        rows = np.empty((region.nbytes // _ADDRESS, _ADDRESS), np.uint8)
        region.read_into(rows).wait(left())
    except _UNREACHED:
        return None
    return rows


def name_of_models(store: str) -> str:
    """Return the name of the stores in which processes offer their models to one that comes back."""
    return f"{store} model"


def read_model(run: Membership, x: Array) -> int:
    """Read the model of one of the others into `x`, and return its step.

    A process offers its model soon after it has seen this one die. Raises DeadlineExceeded if none does.
    """
    assert run.device is not None
    end = time.monotonic() + run.timeout
    last: Exception | None = None
    name = name_of_models(run.name_of_next_store())
    with Store(run.device, run.rank, run.size, x.nbytes, 0, name) as models:
        while time.monotonic() < end:
            for rank in range(run.size):
                if rank == run.rank:
                    continue
                try:
                    models.connect(rank, run.addresses[rank], _ANSWER)
                    return models.pull(rank, x, timeout=_ANSWER).mark
                except _UNREACHED as error:
                    last = error
            time.sleep(0.05)
    raise DeadlineExceeded(
        f"rank {run.rank} comes back, but nobody offers the model ({last}): start all again",
    )

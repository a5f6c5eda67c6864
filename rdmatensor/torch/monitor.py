# SPDX-License-Identifier: Apache-2.0
"""A barrier that names who is missing. It goes through torch's store, and needs no group that works."""

from __future__ import annotations

from datetime import timedelta
from typing import Any


def monitored_barrier(
    store: Any, rank: int, size: int, number: int, timeout: timedelta, wait_all_ranks: bool
) -> None:
    """Return when all members have called it; `number` is that of the call, the same for all.

    Raises RuntimeError after `timeout`: rank 0 names the first rank that is missing, or all of them with
    `wait_all_ranks`.
    """
    keys = [f"barrier {number} of {each}" for each in range(size)]
    end = f"barrier {number} ends"
    if timeout.total_seconds() <= 0:
        raise RuntimeError(f"Rank {rank} timed out in monitoredBarrier after 0 ms")
    if rank:
        store.set(keys[rank], "here")
        _wait_for_verdict(store, rank, end, timeout)
        return
    missing = _missing(store, keys, timeout)
    if number and not missing:
        # Who has come has read how the last one ended.
        store.delete_key(f"barrier {number - 1} ends")
    for each in set(range(1, size)) - set(missing):
        store.delete_key(keys[each])
    text = ""
    if missing:
        names = missing if wait_all_ranks else missing[:1]
        one = "Rank" if len(names) == 1 else "Ranks"
        limit = int(timeout.total_seconds() * 1000)
        text = f"{one} {', '.join(map(str, names))} failed to pass monitoredBarrier in {limit} ms"
    store.set(end, text)
    if text:
        raise RuntimeError(text)


def _missing(store: Any, keys: list[str], timeout: timedelta) -> list[int]:
    """Wait for all keys but the first. Return the numbers of those that have not come in time."""
    if len(keys) > 1:
        try:
            store.wait(keys[1:], timeout)
        except RuntimeError:  # of which kind depends on the store
            return [each for each in range(1, len(keys)) if not store.check([keys[each]])]
    return []


def _wait_for_verdict(store: Any, rank: int, key: str, timeout: timedelta) -> None:
    text = (
        f"Rank {rank} successfully reached monitoredBarrier, but received errors while waiting for send/recv "
        "from rank 0. Please check rank 0 logs for faulty rank."
    )
    try:
        # Rank 0 may have begun later, and waits as long for others.
        store.wait([key], 2 * timeout)
    except RuntimeError as error:
        raise RuntimeError(f"{text} Rank 0 has said nothing in {2 * timeout}") from error
    verdict = store.get(key).decode()
    if verdict:
        raise RuntimeError(f"{text} It says: {verdict}")

# SPDX-License-Identifier: Apache-2.0
"""The API's part of chaos.py: processes that use each other's memory, and groups of them, under faults."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from faults.storm import CALM, corruption, faults, memory
from support.peers import LocalNursery, Peer
from support.usage import grown

MEMBERS = 3
DEADLINE_MS = 1500
# By transport: in a guest that emulates its processors there are few operations for faults to meet.
OFTEN = {"shm": 0.002, "verbs": 0.05}
CORRUPTING = 0.02
PLAY_S, COLLECT_S = 3.0, 3.0
# Groups keep the memory that they needed at most for the next operation: "slabs", and larger blocks.
SLACK = {"descriptors": 2, "mappings": 2, "slabs": 8}
SETUP = """
import rdmatensor
from faults import api_task
device = rdmatensor.Device()
"""


class Team:
    """Processes that do the same at the same time."""

    def __init__(self, transport: str, always: str) -> None:
        self._nursery = LocalNursery()
        environment = {
            "RDMATENSOR_TRANSPORTS": transport,
            "RDMATENSOR_FAULTS": CALM + always,
            "RDMATENSOR_CHECKSUM": "crc32c",  # of groups
            "RDMATENSOR_DEADLINE_MS": str(DEADLINE_MS),
            "RDMATENSOR_LOG_LEVEL": "error",
        }
        self._always = always
        self._peers = [self._nursery.spawn(environment, setup=SETUP) for _ in range(MEMBERS)]
        addresses = [peer.get("device.address") for peer in self._peers]
        for rank, peer in enumerate(self._peers):
            peer.run(
                "member = api_task.Member(device, rank, addresses)", rank=rank, addresses=addresses
            )

    def get(self, expressions: list[str]) -> list[Any]:
        """The value of an expression in each."""
        for peer, expression in zip(self._peers, expressions, strict=True):
            peer.start(f"value = {expression}")
        for peer in self._peers:
            peer.finish(60)
        return [peer.get("value") for peer in self._peers]

    def all(self, expression: str) -> list[Any]:
        """The value of one expression in all."""
        return self.get([expression] * MEMBERS)

    def suffer(self, settings: list[str]) -> None:
        """Faults from now on, for each."""
        texts = [repr(each + self._always) for each in settings]
        self.get([f"rdmatensor.config.set('FAULTS', {each})" for each in texts])

    @contextmanager
    def stopping(self, dice: random.Random, seconds: float) -> Iterator[None]:
        """Meanwhile one of them is stopped now and then."""
        over = threading.Event()

        def stop() -> None:
            while not over.wait(dice.uniform(0, seconds)):
                peer: Peer = dice.choice(self._peers)
                peer.stop()
                over.wait(dice.uniform(0, 1.5 * DEADLINE_MS / 1000))
                peer.resume()

        thread = threading.Thread(target=stop)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def close(self) -> None:
        """PeerFailed if one of them crashed."""
        self.suffer([CALM] * MEMBERS)
        for peer in self._peers:
            peer.close()
        self._nursery.close()


def _play(team: Team, dice: random.Random, seconds: float) -> Counter[str]:
    seeds = [dice.randrange(1 << 30) for _ in range(MEMBERS)]
    total: Counter[str] = Counter()
    for outcome in team.get([f"member.play({each}, {seconds})" for each in seeds]):
        total.update({f"api: {name}": count for name, count in outcome.items()})
    return total


def _collect(team: Team, dice: random.Random, seconds: float, name: str) -> Counter[str]:
    """A group's operations until one fails. Who could not join leaves the others to their time-outs."""
    total: Counter[str] = Counter()
    joined = team.all(f"member.join({name!r})")
    seed = dice.randrange(1 << 30)
    if all(each == "ok" for each in joined):
        for outcome in team.all(f"member.collect({seed}, {seconds})"):
            total.update({f"group: {name}": count for name, count in outcome.items()})
    else:
        total.update(f"join: {each}" for each in joined)
    team.all("member.part()")
    return total


def _rest(team: Team) -> list[dict[str, int]]:
    team.all("member.leave_all()")
    usages: list[dict[str, int]] = team.all("api_task.usage()")
    return usages


def run(
    seconds: float, seed: int, tell: Callable[[str], object], transport: str = "shm"
) -> Counter[str]:
    """Episodes for so long; how often operations ended how. AssertionError for what must not be."""
    total: Counter[str] = Counter()
    dice = random.Random(f"{seed} api")
    team = Team(transport, memory(dice))
    end = time.monotonic() + seconds
    _play(team, dice, 1.0)
    calm = _collect(team, dice, 1.0, "calm")
    assert all(name.startswith("group: ok, ") for name in calm), calm
    total += calm
    before = _rest(team)
    episode = 0
    while episode == 0 or time.monotonic() < end:
        often = OFTEN[transport]
        settings = [faults(dice, often) for _ in range(MEMBERS)]
        tell(f"api, episode {episode}: {settings}")
        team.suffer(settings)
        with team.stopping(dice, PLAY_S):
            total += _play(team, dice, min(PLAY_S, seconds / 3))
        # Of all that these do, only groups have checksums.
        team.suffer([setting + corruption(dice, CORRUPTING) for setting in settings])
        total += _collect(team, dice, min(COLLECT_S, seconds / 3), f"group {episode}")
        team.suffer([CALM] * MEMBERS)
        for rank in range(MEMBERS):
            more = grown(lambda r=rank: _rest(team)[r], before[rank], SLACK)
            held = team.all("member.holds()") if more else None
            assert not more, f"member {rank} holds more than before: {more}; all hold {held}"
        episode += 1
    counts = team.all("__import__('rdmatensor.faults').faults.counts()")
    for each in counts:
        total.update({f"fault: {kind}": count for kind, count in each.items() if count})
    team.close()
    total["api: episodes"] = episode
    return total

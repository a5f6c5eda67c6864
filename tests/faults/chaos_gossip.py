# SPDX-License-Identifier: Apache-2.0
"""The stores' part of chaos.py: processes train asynchronously under faults, are stopped, and are killed."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from faults.storm import CALM, faults, memory
from support.peers import PATIENCE, LocalNursery, Peer
from support.usage import grown

MEMBERS = 3
DEADLINE_MS = 1500
# A call that is given up ends within its deadline, a second of grace, and two to end its connection. An
# exchange makes one for each other process at most, because who is lost is asked no more.
LIMIT_S = 2 * (DEADLINE_MS / 1000 + 3) * (MEMBERS - 1)
OFTEN, CONNECTING = 0.004, 0.3
TRAIN_S = 3.0
# What is left of the distance to the common target. A process that hears nothing keeps a third.
LOSS = 0.1
SLACK = {"descriptors": 2, "mappings": 2}
SETUP = """
import rdmatensor
from faults import gossip_task
device = rdmatensor.Device()
member = gossip_task.Member(device, rank, size)
"""


class Team:
    """Processes that train together, and what befalls them."""

    def __init__(self, dice: random.Random, transport: str) -> None:
        self._always = memory(dice)
        self._transport = transport
        self._nursery = LocalNursery()
        self._peers = [self._spawn(rank) for rank in range(MEMBERS)]
        self._episodes = 0
        self._back: int | None = None
        self.measure()

    def _spawn(self, rank: int) -> Peer:
        environment = {
            "RDMATENSOR_TRANSPORTS": self._transport,
            "RDMATENSOR_FAULTS": CALM + self._always,
            "RDMATENSOR_DEADLINE_MS": str(DEADLINE_MS),
            "RDMATENSOR_LOG_LEVEL": "error",
        }
        peer = self._nursery.spawn(environment, setup=f"rank, size = {rank}, {MEMBERS}\n{SETUP}")
        peer.address = peer.get("device.address")
        return peer

    def _all(self, expressions: list[str], **variables: Any) -> list[Any]:
        """The values of an expression in each, which all compute at the same time."""
        for peer, expression in zip(self._peers, expressions, strict=True):
            peer.start(f"value = {expression}", **variables)
        for peer in self._peers:
            peer.finish()
        return [peer.get("value") for peer in self._peers]

    def all(self, expression: str, **variables: Any) -> list[Any]:
        """The same in all."""
        return self._all([expression] * MEMBERS, **variables)

    def suffer(self, setting: str, peer: Peer) -> None:
        """Faults from now on."""
        peer.get("rdmatensor.config.set('FAULTS', setting)", setting=setting + self._always)

    def begin(self) -> None:
        """Opens new models in all."""
        self._episodes += 1
        self._addresses = [peer.address for peer in self._peers]
        self.all(
            "member.begin(episode, addresses, False)",
            episode=f"episode {self._episodes}",
            addresses=self._addresses,
        )

    def train(self, dice: random.Random, seconds: float, settings: list[str]) -> Counter[str]:
        """Under faults. Meanwhile one is stopped now and then, or killed."""
        begin = time.monotonic()
        seeds = [dice.randrange(1 << 30) for _ in self._peers]
        doomed = dice.choice([*range(MEMBERS), None])
        moment = dice.uniform(0.2, 0.8) * seconds
        total: Counter[str] = Counter()
        for peer, setting in zip(self._peers, settings, strict=True):
            self.suffer(setting, peer)
        for peer, seed in zip(self._peers, seeds, strict=True):
            peer.start(f"value = member.train({seed}, {seconds}, {LIMIT_S})")
        others = [peer for rank, peer in enumerate(self._peers) if rank != doomed]
        with _Stopping(dice, others, seconds):
            if doomed is not None:
                time.sleep(max(0.0, begin + moment - time.monotonic()))
                self._peers[doomed].kill()
                total["gossip: killed"] += 1
            for peer in others:
                peer.finish()
                total.update(peer.get("value"))
        for peer in others:
            self.suffer(CALM, peer)
        if doomed is not None:
            self._peers[doomed] = self._spawn(doomed)
        self._back = doomed
        return total + self._come_together()

    def _come_together(self) -> Counter[str]:
        """Without faults. One comes back in the place of that which was killed."""
        total: Counter[str] = Counter()
        for rank, peer in enumerate(self._peers):
            again = ""
            if rank == self._back:
                again = "member.begin(episode, addresses, True); "
            peer.start(
                f"{again}value = member.come_together({LIMIT_S})",
                episode=f"episode {self._episodes}",
                addresses=self._addresses,
            )
        for peer in self._peers:
            peer.finish()
            total.update(peer.get("value"))
        return total

    def faults(self) -> Counter[str]:
        """How often which fault was injected in those that live."""
        total: Counter[str] = Counter()
        for counts in self.all("__import__('rdmatensor.faults').faults.counts()"):
            total.update({f"fault: {kind}": count for kind, count in counts.items() if count})
        return total

    def learn(self) -> None:
        """Trains without faults until every model is near to what all processes know together. AssertionError
        if that takes too long."""
        end = time.monotonic() + PATIENCE
        while any(
            loss >= LOSS for losses in self.all("member.losses()") for loss in losses.values()
        ):
            assert time.monotonic() < end, f"losses do not fall: {self.all('member.losses()')}"
            self.all(f"member.train(0, 0.3, {LIMIT_S})")

    def rest(self) -> None:
        """Ends the episode. AssertionError if a process holds more than before. One that has come back has no
        channels of groups yet, which others keep for later groups."""
        self.all("member.close()")
        for rank, peer in enumerate(self._peers):
            if rank != self._back:
                before = self._before
                more = grown(lambda p=peer: p.get("gossip_task.usage()"), before[rank], SLACK)
                held = peer.get("member.holds()") if more else None
                assert not more, f"rank {rank} holds more than before: {more}; {held}"
        if self._back is not None:
            self.measure()

    def measure(self) -> None:
        """Sees what each holds after all have trained together, without faults."""
        self.begin()
        self.all("member.close()")
        self._before: list[dict[str, int]] = self.all("gossip_task.usage()")
        self._back = None

    def close(self) -> None:
        """PeerFailed if one of them crashed."""
        for peer in self._peers:
            peer.close()
        self._nursery.close()


class _Stopping:
    """Meanwhile one of the processes is stopped now and then, for up to longer than the deadline."""

    def __init__(self, dice: random.Random, peers: list[Peer], seconds: float) -> None:
        self._dice, self._peers, self._seconds = dice, peers, seconds
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        while not self._over.wait(self._dice.uniform(0, self._seconds)):
            peer = self._dice.choice(self._peers)
            peer.stop()
            self._over.wait(self._dice.uniform(0, 1.5 * DEADLINE_MS / 1000))
            peer.resume()

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


def run(
    seconds: float, seed: int, tell: Callable[[str], object], transport: str = "shm"
) -> Counter[str]:
    """Episodes for so long; how often exchanges ended how. AssertionError for what must not be."""
    total: Counter[str] = Counter()
    dice = random.Random(f"{seed} gossip")
    end = time.monotonic() + seconds
    team = Team(dice, transport)
    while not total or time.monotonic() < end:
        settings = [faults(dice, OFTEN, CONNECTING) for _ in range(MEMBERS)]
        tell(f"gossip, episode {total['gossip: episodes']}: {settings}")
        team.begin()
        total += team.train(dice, min(TRAIN_S, seconds / 2), settings)
        team.learn()
        team.rest()
        total["gossip: episodes"] += 1
    total += team.faults()
    team.close()
    return total

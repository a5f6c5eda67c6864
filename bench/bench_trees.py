# SPDX-License-Identifier: Apache-2.0
"""All-reduce along spanning trees against rings, direct exchange and gloo, in turns, over emulated links:
network namespaces, whose interfaces the kernel limits. It needs root."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

from bench_group import GLOO, OURS, start
from harness import MB, Bench, Way, main
from rdmatensor import Unsupported
from rdmatensor.topology import Link, Member, Topology, load
from rdmatensor.topology.emulate import Emulation, emulated
from rdmatensor.topology.pack import pack
from team import Team

SUITE = "all-reduce of float32 over emulated links, TCP"
TREES, RING, DIRECT, BOUND = "trees", "ring", "direct", "computed bound"
OF_BOUND, NOT_SLOWER = 0.9, 1 / 1.05


class Case(NamedTuple):
    """A topology whose widest link carries `bandwidth` bytes per second here, and what trees are to reach."""

    name: str
    topology: Topology
    bandwidth: float
    rival: str
    target: float

    def scaled(self) -> Topology:
        """The topology with links as slow as that."""
        factor = self.bandwidth / max(each.bandwidth for each in self.topology.links)
        links = (
            replace(each, bandwidth=each.bandwidth * factor, latency=0.0)
            for each in self.topology.links
        )
        return replace(self.topology, links=tuple(links))


def uniform(name: str, pairs: list[tuple[int, int]], size: int) -> Topology:
    links = tuple(Link(f"m{i}", f"m{k}", 1.0) for one in pairs for i, k in (one, one[::-1]))
    return Topology(name, tuple(Member(f"m{i}") for i in range(size)), links)


def cases() -> list[Case]:
    dgx1 = load("dgx1-v100")
    ring = uniform("ring", [(i, (i + 1) % 4) for i in range(4)], 4)
    full = uniform("all pairs", [(i, k) for i in range(4) for k in range(i)], 4)
    return [
        Case("ring of 4, one link at a quarter", load("slow-ring"), 16e6, RING, 2.0),
        Case("ring of 4, equal links", ring, 8e6, RING, NOT_SLOWER),
        Case("4 members, every pair linked alike", full, 4e6, DIRECT, NOT_SLOWER),
        Case("DGX-1, GPUs 0 1 2", dgx1.only([0, 1, 2]), 8e6, RING, 1.0),
        Case("DGX-1, GPUs 0 1 3 4 5", dgx1.only([0, 1, 3, 4, 5]), 6e6, RING, 1.0),
        Case("DGX-1, all 8 GPUs", dgx1, 4e6, RING, 1.0),
    ]


def at_node(emulation: Emulation, file: Path) -> Callable[[int], list[str]]:
    """How a member's command line begins that puts it at its node."""
    settings = [f"BENCH_TOPOLOGY={file}", "RDMATENSOR_TRANSPORTS=tcp", "RDMATENSOR_INSECURE=1"]
    settings.append("GLOO_SOCKET_IFNAME=lo")
    # Gloo takes an interface's first address, which is to be the node's.
    alone = ["sh", "-c", 'ip address del 127.0.0.1/8 dev lo 2>/dev/null; exec "$@"', "sh"]

    def place(rank: int) -> list[str]:
        own = f"RDMATENSOR_BIND_ADDRESS={emulation.addresses[rank]}"
        return emulation.command(rank, *alone, "env", own, *settings)

    return place


def compare(bench: Bench, case: Case, nbytes: int, turns: int) -> None:
    """Measure all ways in turns, of which each is one all-reduce."""
    topology = case.scaled()
    order = {"nbytes": nbytes, "calls": 1}
    with contextlib.ExitStack() as stack:
        file = Path(stack.enter_context(tempfile.TemporaryDirectory()), "topology.json")
        emulation = stack.enter_context(emulated(topology))
        emulation.topology.save(file)
        team, place = stack.enter_context(Team()), at_node(emulation, file)
        groups = {each: start(bench, team, each, topology.size, place) for each in (OURS, GLOO)}

        def once(library: str, way: str) -> list[float]:
            members = groups[library]
            assert members is not None
            return members.slowest("steps", 300.0, case=way, count=1, **order)

        ways: dict[str, Way] = {way: partial(once, OURS, way) for way in (TREES, RING, DIRECT)}
        if groups[GLOO]:
            ways[GLOO] = partial(once, GLOO, "")
        rivals = {TREES: (case.rival, case.target)}
        found = bench.compare(SUITE, case.name, ways, turns, rivals=rivals, nbytes=nbytes)
    name, trees = f"{case.name}: the bound", found[TREES].all
    bench.add(SUITE, name, TREES, trees, nbytes=nbytes, rival=(BOUND, OF_BOUND))
    bench.add(SUITE, name, BOUND, [nbytes / pack(topology, "all_reduce").bound], nbytes=nbytes)


def measure(bench: Bench, turns: int = 2) -> None:
    try:
        for case in bench.wanted(cases()):
            compare(bench, case, (8 if bench.quick else 64) * MB, turns)
    except Unsupported as error:
        bench.missing(case.name, str(error), "run it as root")


if __name__ == "__main__":
    main(measure)

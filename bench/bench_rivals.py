# SPDX-License-Identifier: Apache-2.0
"""Writes from Python: rdmatensor, NIXL (over UCX) and the Mooncake Transfer Engine (over TCP), in turns.

Writes that the other process answers compare rdmatensor with the object store of Ray.

With --verbs, both ends use that RDMA device of this machine, and Mooncake is left out. With --tcp, all use
TCP, over loopback, and as root between two network namespaces.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from functools import partial

import rivals
from harness import KB, MB, Bench, Way, main
from networks import LOOPBACK, Network, loopback_and_veth
from team import HERE, Failed, Members, Team

SIZES = (8, 512, 4 * KB, 64 * KB, MB, 16 * MB, 128 * MB)
QUICK_SIZES = (8, 4 * KB, 64 * KB, MB, 16 * MB)
TCP_SIZES = (4 * KB, MB, 64 * MB)
ANSWERED_SIZES = (4 * KB, MB, 128 * MB)
OURS, NIXL, MOONCAKE = "rdmatensor", "NIXL", "Mooncake"
ANSWERED, RAY = "rdmatensor, answered", "Ray"
MODULES = {
    NIXL: ("nixl", "pip install --no-deps nixl nixl-cu12"),
    MOONCAKE: ("mooncake", "pip install mooncake-transfer-engine-non-cuda"),
}
QUIET = {"UCX_LOG_LEVEL": "error", "NIXL_LOG_LEVEL": "ERROR", "RDMATENSOR_LOG_LEVEL": "error"}


def connected(
    team: Team,
    library: str,
    rival_python: str,
    nbytes: int,
    network: Network = LOOPBACK,
    near: Mapping[str, str] = {},
    far: Mapping[str, str] = {},
) -> Members:
    """The active end of a library, connected to the other one, each in a process of its own."""
    python = sys.executable if library in (OURS, ANSWERED) else rival_python
    program = [python, HERE / "rival_member.py", library]
    there = [*network.prefix, *program, network.host, nbytes]
    passive = Members(team.start(f"{library}, far", there, {**QUIET, **far}))
    active = Members(team.start(library, [*program, network.near, nbytes], {**QUIET, **near}))
    active.ask("connect", about=passive.ask("about")[0])
    return active


def turn(active: Members, nbytes: int, megabytes: int) -> list[float]:
    """Times up to 1000 writes, and at least three, of `megabytes` MB in total."""
    return active.slowest("steps", nbytes=nbytes, count=max(3, min(1000, megabytes * MB // nbytes)))


def tcp_turn(library: str, rival_python: str, nbytes: int, network: Network) -> list[float]:
    """One turn in new processes, because NIXL's threads poll as long as its processes run."""
    near, far = (
        {**rivals.over_tcp(network.interface(end)), **network.over_tcp(end)}
        for end in (False, True)
    )
    with Team() as team:
        ends = connected(team, library, rival_python, nbytes, network, near, far)
        return turn(ends, nbytes, 128)


def there(bench: Bench, libraries: Iterable[str]) -> list[str]:
    """Return our name, and those of the rivals that are installed."""
    return [OURS, *(each for each in libraries if bench.has(each, *MODULES[each]))]


def compare(
    bench: Bench, nbytes: int, over: str, target: float | None, ways: Mapping[str, Way]
) -> None:
    bench.compare(
        *(f"rivals, Python{over}", "write latency", ways, 3 if bench.quick else 5),
        rivals={OURS: (NIXL, target)},
        nbytes=nbytes,
    )


def compare_answered(bench: Bench) -> None:
    """Measure how long it takes until another process has an array and says so."""
    libraries = [ANSWERED, *([RAY] if bench.has(RAY, "ray") else [])]
    with Team() as team:
        ends = {
            each: connected(team, each, bench.rival_python, max(ANSWERED_SIZES))
            for each in libraries
        }
        for nbytes in ANSWERED_SIZES:
            bench.compare(
                *("rivals, Python", "write and answer latency"),
                {each: partial(turn, end, nbytes, 128) for each, end in ends.items()},
                3 if bench.quick else 5,
                rivals={ANSWERED: (RAY, None)},
                nbytes=nbytes,
            )


def measure(bench: Bench, tcp: bool = False, verbs: str = "", gid_index: int = 1) -> None:
    if tcp:
        libraries = there(bench, MODULES)
        for network in loopback_and_veth(bench):
            for nbytes in TCP_SIZES:
                turns = {
                    each: partial(tcp_turn, each, bench.rival_python, nbytes, network)
                    for each in libraries
                }
                compare(bench, nbytes, f", tcp over {network.name}", 1.2, turns)
        return
    sizes = QUICK_SIZES if bench.quick else SIZES
    settings: dict[str, str] = {}
    if verbs:
        settings = {"RDMATENSOR_TRANSPORTS": "verbs", "RDMATENSOR_DEVICE": verbs}
        settings |= rivals.over_verbs(verbs, gid_index)
    with Team() as team:
        ends = {}
        for library in there(bench, [NIXL] if verbs else MODULES):
            try:
                ends[library] = connected(
                    team, library, bench.rival_python, max(sizes), near=settings, far=settings
                )
            except Failed as failure:
                if library == OURS:
                    raise
                bench.missing(library, rivals.reason(failure.message), "repair its installation")
        for nbytes in sizes:
            each_mb = 8 if verbs else 128
            turns = {each: partial(turn, end, nbytes, each_mb) for each, end in ends.items()}
            target = 3.0 if nbytes == 8 and not verbs else None
            compare(bench, nbytes, ", verbs" if verbs else "", target, turns)
    if not verbs:
        compare_answered(bench)


if __name__ == "__main__":
    main(measure)

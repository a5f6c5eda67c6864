# SPDX-License-Identifier: Apache-2.0
"""All-reduce along spanning trees against rings, direct exchange and gloo, in turns, over emulated links:
network namespaces, whose interfaces the kernel limits. It needs root; docs/benchmarks.md explains it."""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import click

from bench_group import GLOO, OURS, Members, Size, commands, missing
from options import (
    console,
    deliver,
    json_option,
    only_option,
    quick_option,
    rival_python_option,
)
from rdmatensor import Unsupported
from rdmatensor.bench import record
from rdmatensor.bench.turns import in_turns
from rdmatensor.topology import Link, Member, Topology, load
from rdmatensor.topology.emulate import Emulation, emulated
from rdmatensor.topology.pack import pack

TREES, RING, DIRECT, BOUND = "trees", "ring", "direct", "computed bound"
OF_BOUND, NOT_SLOWER = 0.9, 1 / 1.05


@dataclass(frozen=True)
class Case:
    """A topology whose widest link carries `bandwidth` bytes per second here, and what trees are to reach."""

    name: str
    topology: Topology
    bandwidth: float
    rival: str
    target: float

    @property
    def scaled(self) -> Topology:
        factor = self.bandwidth / max(each.bandwidth for each in self.topology.links)
        links = tuple(
            replace(each, bandwidth=each.bandwidth * factor, latency=0.0)
            for each in self.topology.links
        )
        return replace(self.topology, links=links)


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


@contextlib.contextmanager
def started(
    library: str, emulation: Emulation, folder: Path, rival_python: str
) -> Iterator[Members]:
    """A library's members, each at its node."""
    size = emulation.topology.size
    file = folder / "topology.json"
    emulation.topology.save(file)
    settings = [f"BENCH_TOPOLOGY={file}", "RDMATENSOR_TRANSPORTS=tcp", "RDMATENSOR_INSECURE=1"]
    settings.append("GLOO_SOCKET_IFNAME=lo")
    lines = []
    address = str(folder / library)
    for rank, command in enumerate(commands(library, address, size, rival_python)):
        own = f"RDMATENSOR_BIND_ADDRESS={emulation.addresses[rank]}"
        # Gloo takes an interface's first address, which is to be the node's.
        alone = ["sh", "-c", 'ip address del 127.0.0.1/8 dev lo 2>/dev/null; exec "$@"', "sh"]
        lines.append(emulation.command(rank, *alone, "env", own, *settings, *command))
    members = Members(address, size, lines)
    try:
        members.meet(size)
        yield members
    finally:
        members.close()


def measure(
    case: Case, nbytes: int, turns: int, libraries: list[str], rival_python: str
) -> list[record.Result]:
    """Measures all ways in turns, of which each is one all-reduce."""
    topology = case.scaled
    bound = pack(topology, "all_reduce").bound
    size = Size(nbytes, 1, 1, 1.0)
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        emulation = stack.enter_context(emulated(topology))
        groups = {
            library: stack.enter_context(started(library, emulation, folder, rival_python))
            for library in libraries
        }
        calls: dict[str, Callable[[], list[float]]] = {
            way: lambda way=way: groups[OURS].measure(way, True, size)[0]  # type: ignore[misc]
            for way in (TREES, RING, DIRECT)
        }
        if GLOO in groups:
            calls[GLOO] = lambda: groups[GLOO].measure("", True, size)[0]
        found = {way: samples.all for way, samples in in_turns(calls, turns).items()}
    found[BOUND] = [nbytes / bound]

    def result(name: str, way: str, rival: str = "", target: float | None = None) -> record.Result:
        parameters: dict[str, record.Parameter] = {"members": topology.size, "turns": turns}
        return record.Result(
            "all-reduce of float32 over emulated links, TCP",
            name,
            way,
            record.SECONDS,
            found[way],
            nbytes,
            found[way],
            parameters,
            [],
            rival,
            target,
        )

    return [
        *(result(case.name, way) for way in found if way not in (TREES, BOUND)),
        result(case.name, TREES, case.rival, case.target),
        result(f"{case.name}: the bound", TREES, BOUND, OF_BOUND),
        result(f"{case.name}: the bound", BOUND),
    ]


@click.command(help=__doc__)
@quick_option("Use 8 MB instead of 64 MB.")
@only_option([each.name for each in cases()])
@click.option("--turns", default=2, show_default=True, help="Measure each way so often.")
@rival_python_option
@json_option
def main(
    quick: bool, only: tuple[str, ...], turns: int, rival_python: str, json_file: Path | None
) -> None:
    run = record.Run("Trees over emulated links", record.Environment.here(transport="tcp"), quick)
    libraries = [OURS]
    if absent := missing(GLOO, rival_python):
        run.missing.append(absent)
    else:
        libraries.append(GLOO)
    began = time.monotonic()
    with console().status("measuring") as status:
        for case in cases():
            if not only or case.name in only:
                status.update(case.name)
                try:
                    nbytes = (8 if quick else 64) << 20
                    run.results += measure(case, nbytes, turns, libraries, rival_python)
                except Unsupported as error:
                    run.missing.append(record.Missing(case.name, str(error), "run it as root"))
                    break
    run.finish(time.monotonic() - began)
    deliver(run, json_file)


if __name__ == "__main__":
    main()

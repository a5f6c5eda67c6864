# SPDX-License-Identifier: Apache-2.0
"""What probing finds is what was emulated: bandwidths by direction, latencies, and links that pairs share."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from rdmatensor import topology
from rdmatensor.cli import main
from rdmatensor.topology import Link, Topology
from rdmatensor.topology.inferred import Figures, infer
from rdmatensor.topology.machine import details
from rdmatensor.topology.model import Matrix
from topology.conftest import Place, members
from transport.teams import Team


def check(team: Team, right: Callable[[Topology], bool], seconds: float = 0.2) -> None:
    """Probes. On a busy machine, several times: a process that does not run looks like a slow link."""
    tried: list[Any] = []
    while len(tried) < 4:
        team.run("found = topology.probe(group, seconds)", seconds=seconds)
        found = team.get("found.to_json()")
        assert all(each == found[0] for each in found), "every member has the same"
        tried.append(found[0])
        if right(topology.parse(found[0])):
            return
    raise AssertionError(tried)


def near(found: float, declared: float) -> bool:
    return abs(found / declared - 1) < 0.25


def test_pairs_in_both_directions(place: Place) -> None:
    """Links of a full graph that differ by direction; nothing is shared."""
    rates = {(0, 1): 8e6, (1, 0): 1e6, (0, 2): 2e6, (2, 0): 3e6, (1, 2): 8e6, (2, 1): 6e6}
    links = tuple(Link(f"m{i}", f"m{k}", rate) for (i, k), rate in rates.items())
    _, team = place.emulated(Topology("pairs", members(3), links))
    check(
        team,
        lambda found: (
            not found.switches
            and all(near(found.capacity[pair], rate) for pair, rate in rates.items())
        ),
    )


def test_an_uplink_that_pairs_share(place: Place) -> None:
    """Two islands of two members: inside, pairs are fast; between, they share a slow cable."""
    links = [Link(f"m{i}", f"s{i // 2}", 6e6) for i in range(4)] + [Link("s0", "s1", 3e6)]
    links += [Link(each.target, each.source, each.bandwidth) for each in links]
    _, team = place.emulated(Topology("islands", members(4), tuple(links), ("s0", "s1")))

    def right(found: Topology) -> bool:
        uplinks = [each for each in found.switches if each.startswith("uplink")]
        core = found.index.get("core", -1)
        return len(uplinks) == 2 and all(
            near(found.capacity[found.index[each], core], 3e6) for each in uplinks
        )

    check(team, right)


def test_rates_and_latencies_of_emulated_ports(place: Place) -> None:
    """FAULTS limits all that a process writes: one port, which its pairs share."""
    team = place.here(["", "rate=2M", ""])
    check(team, lambda found: near(found.capacity[1].sum(), 2e6) and found.capacity[0].sum() > 8e6)
    team = place.here(["latency=4ms", "latency=4ms"])
    check(team, lambda found: all(4e-3 <= each.latency < 6e-3 for each in found.links))


def figures(alone: Matrix, port: float = np.inf, **more: Any) -> Figures:
    """What members see whose ports carry so much in each direction."""
    np.fill_diagonal(alone, 0.0)
    sent, received = np.minimum(alone.sum(1), port), np.minimum(alone.sum(0), port)
    return Figures(
        alone, np.full_like(alone, 1e-5), sent, received, more.pop("circles", alone), **more
    )


def test_what_is_inferred() -> None:
    """The simplest topology that explains the figures."""
    direct = infer("direct", members(4), figures(np.full((4, 4), 1e9)))
    assert direct.switches == () and len(direct.links) == 12
    star = infer("star", members(4), figures(np.full((4, 4), 1e9), 1e9))
    assert star.switches == ("network",) and len(star.links) == 8
    assert star.capacity[0, 4] == star.capacity[4, 0] == 1e9
    assert {each.latency for each in star.links} == {5e-6}
    # Two islands: in the slowest circle, both members of each one send to the other one.
    alone, circles = np.full((4, 4), 1e9), np.full((4, 4), 1e9)
    for i, k in ((0, 2), (1, 3), (2, 0), (3, 1)):
        circles[i, k] = 5e8
    conflicts = [((0, 2), (1, 3)), ((2, 0), (3, 1))]
    found = infer("islands", members(4), figures(alone, circles=circles, conflicts=conflicts))
    assert found.switches == ("core", "uplink of m0", "uplink of m2")
    assert found.capacity[found.index["uplink of m2"], found.index["core"]] == 1e9
    assert found.capacity[0, 1] == 1e9 and found.capacity[0, 2] == 0
    # Everything is in everything's way.
    conflicts = [((0, 2), (1, 3)), ((0, 2), (3, 1)), ((2, 0), (1, 3))]
    found = infer("core", members(4), figures(alone, circles=circles, conflicts=conflicts))
    assert found.switches == ("core",)
    assert found.capacity[:4, 4].tolist() == [1e9] * 4


def test_a_piece_that_is_arriving(place: Place) -> None:
    """It counts once all of its stamp is there, wherever the bytes that arrived end."""
    team = place.here(["", ""])
    team.run(
        """
        from rdmatensor.topology.probing import Prober
        with Prober(group) as prober:
            prober._measured, prober._rates[1, 0] = 7, 1e6
            if rank == 1:
                prober._send((1, 0))
            group.barrier()
            counts = []
            if rank == 0:
                nbytes, *all_came = prober._pieces_here((1, 0))
                end = 2 * size * 64 + prober._share + nbytes
                stamp = slice(end - 16, end)
                arrived = prober._region.array[stamp].copy()
                for length in range(17):
                    prober._region.array[stamp] = 1  # as all of it was before
                    prober._region.array[end - 16 : end - 16 + length] = arrived[:length]
                    counts.append(prober._pieces_here((1, 0))[1])
            group.barrier()
        """
    )
    came, count = team.peers[0].get("all_came")
    assert came == count > 1
    assert team.peers[0].get("counts") == [count - 1] * 16 + [count]


def test_a_member_that_dies(place: Place) -> None:
    team = place.here(["", "", ""])
    for peer in team.peers:
        peer.run("from support.group_checks import failure")
        peer.start("outcome = failure(lambda: topology.probe(group, seconds=5, timeout=20))")
    team.peers[2].kill()
    for peer in team.peers[:2]:
        peer.finish(60)
        assert peer.get("outcome[0]") == "ConnectionLost"


def test_refuses(place: Place) -> None:
    team = place.here(["", ""])
    team.run("outcome = failure(lambda: topology.probe(group, seconds=0))")
    assert team.get("outcome[0]") == ["UsageError"] * 2


def test_details_of_a_machine(tmp_path: Path) -> None:
    """sysfs of a machine with two NUMA nodes, and a card of each kind."""
    files = {
        "devices/system/node/node0/cpulist": "0-4095",
        "devices/system/node/node1/cpulist": "4096-8191",
        "class/infiniband/mlx5_0/ports/1/rate": "100 Gb/sec (4X EDR)",
        "class/net/lo/speed": "25000",
    }
    for name, text in files.items():
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text + "\n")
    card = tmp_path / "devices/pci0000:00/0000:3b:00.0"
    card.mkdir(parents=True)
    (tmp_path / "class/infiniband/mlx5_0/device").symlink_to(card)
    assert details("127.0.0.1", "mlx5_0:1", tmp_path) == {
        "numa": "0",
        "port": "mlx5_0:1",
        "speed": "100 Gb/sec (4X EDR)",
        "pci": "0000:3b:00.0",
    }
    assert details("127.0.0.1", "", tmp_path) == {
        "numa": "0",
        "port": "lo",
        "speed": "25000 Mb/sec",
    }
    assert details("", "", tmp_path / "none") == {}


def test_command() -> None:
    """The first of the processes that a launcher starts prints what all found."""
    program = shutil.which("rdmatensor", path=str(Path(sys.executable).parent))
    assert program is not None
    command = [program, "launch", "-n", "2", program, "topology", "--probe", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    said = re.findall(r"^\[worker (\d)\] (.*)$", done.stdout, re.MULTILINE)
    assert {number for number, _ in said} == {"0"}
    found = topology.parse(json.loads("".join(line for _, line in said))["topology"])
    assert found.size == 2 and found.capacity[0, 1] > 0 and found.capacity[1, 0] > 0


@pytest.mark.parametrize(
    ("arguments", "status", "text"),
    [
        (["--probe"], 1, "--probe needs several processes"),
        (["slow-ring", "--probe"], 2, "not both"),
    ],
)
def test_command_refuses(
    arguments: list[str], status: int, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("TF_CONFIG", "RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    refused = CliRunner().invoke(main, ["topology", *arguments])
    assert refused.exit_code == status and text in refused.stderr

# SPDX-License-Identifier: Apache-2.0
"""The JSON format of topologies: what is read, what is refused and why, and the recorded ones."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner

from rdmatensor import UsageError, topology
from rdmatensor.cli import main

RIGHT: dict[str, Any] = {
    "format": "rdmatensor-topology",
    "version": 1,
    "name": "two",
    "members": [{"name": "a", "host": "x", "numa": "0"}, {"name": "b"}],
    "switches": ["s"],
    "links": [
        {"from": "a", "to": "s", "bandwidth": "25GB", "latency": "2us"},
        {"from": "s", "to": "b", "bandwidth": 1e9, "duplex": False},
        {"from": "s", "to": "b", "bandwidth": "8Gbit", "duplex": False},
    ],
}


def test_reads_units_directions_and_details() -> None:
    read = topology.parse(RIGHT)
    assert (read.size, read.index) == (2, {"a": 0, "b": 1, "s": 2})
    assert read.members[0].details == {"numa": "0"}
    assert read.capacity.tolist() == [[0, 0, 25e9], [0, 0, 0], [25e9, 2e9, 0]]
    assert read.reversed().capacity.tolist() == read.capacity.T.tolist()
    assert read.only([1]).capacity.tolist() == [[0, 0], [2e9, 0]]


@pytest.mark.parametrize(
    ("path", "value", "text"),
    [
        (["format"], "json", "rdmatensor-topology"),
        (["version"], 2, '"version": 1'),
        (["more"], 1, "unknown key 'more'"),
        (["members"], [], "no members"),
        (["members"], None, "members is missing"),
        (["members", 1, "name"], "a", "two nodes are called 'a'"),
        (["members", 1], "b", r"members\[1\] is no JSON object"),
        (["members", 0, "numa"], 0, r"members\[0\].numa is 0: give a text"),
        (["links", 0, "to"], "c", "a link names 'c', which is no node"),
        (["links", 0, "to"], "a", "from 'a' to itself"),
        (["links", 0, "bandwidth"], 0, "finite bandwidth above 0"),
        (["links", 0, "bandwidth"], float("nan"), "finite bandwidth above 0"),
        (["links", 0, "bandwidth"], "fast", r"links\[0\].bandwidth: bandwidth 'fast'"),
        (["links", 0, "bandwidth"], None, r"links\[0\].bandwidth is None: give a number"),
        (["links", 0, "latency"], -1, "finite latency"),
        (["links", 0, "duplex"], "yes", "give true or false"),
    ],
)
def test_refuses(path: list[Any], value: Any, text: str) -> None:
    document = copy.deepcopy(RIGHT)
    place: Any = document
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    with pytest.raises(UsageError, match=text):
        topology.parse(document)


def test_command(tmp_path: Path) -> None:
    run = CliRunner().invoke
    assert run(main, ["topology"]).output.split() == topology.recorded_names()
    said = run(main, ["topology", "slow-ring"]).output
    assert "node0 -> node3: 250 MB/s" in said
    picture = tmp_path / "trees.svg"
    options = ["--plan", "all_reduce", "--svg", str(picture), "--json"]
    done = run(main, ["topology", "slow-ring", *options])
    document = json.loads(done.output)
    assert document["packing"]["kind"] == "all_reduce"
    assert topology.parse(document["topology"]).size == 4
    drawn = ElementTree.fromstring(picture.read_text())
    edges = [each for each in drawn if each.tag.endswith("line")]
    trees = document["packing"]["trees"]
    assert len(edges) == 4 + 3 * len(trees)
    legend = [each.findtext("{*}text", "") for each in drawn if each.tag.endswith("}g")]
    links = ["link of 1 GB/s", "link of 250 MB/s"]
    assert legend[: 1 + len(links)] == ["member of the group", *links]
    assert [text.split(",")[0] for text in legend[1 + len(links) :]] == [
        f"tree {number + 1}" for number in range(len(trees))
    ]
    for wrong in (
        ["none"],
        ["slow-ring", "--members", "0,9"],
        ["slow-ring", "--plan", "broadcast", "--root", "9"],
    ):
        refused = run(main, ["topology", *wrong])
        assert refused.exit_code == 1 and refused.stderr.startswith("rdmatensor topology: ")


def test_refuses_files(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"No such file.*dgx1-v100"):
        topology.load(tmp_path / "none.json")
    broken = tmp_path / "broken.json"
    broken.write_text("{")
    with pytest.raises(UsageError, match="no JSON"):
        topology.load(broken)


@pytest.mark.parametrize("name", topology.recorded_names())
def test_what_is_saved_is_read(name: str, tmp_path: Path) -> None:
    recorded = topology.load(name)
    recorded.save(tmp_path / "copy.json")
    again = topology.load(tmp_path / "copy.json")
    assert again.to_json() == recorded.to_json() == json.loads((tmp_path / "copy.json").read_text())
    assert (again.capacity == recorded.capacity).all()


def test_recorded_topologies() -> None:
    dgx1 = topology.load("dgx1-v100")
    assert dgx1.capacity.sum(axis=0).tolist() == [6 * 25e9] * 8, "six NVLinks of each GPU"
    assert (dgx1.capacity == dgx1.capacity.T).all()
    assert topology.load("dgx2").size == 16
    assert topology.load("fat-tree").switches[-1] == "spine1"
    slow = topology.load("slow-ring").capacity
    assert sorted(slow[slow > 0]) == [0.25e9] * 2 + [1e9] * 6

# SPDX-License-Identifier: Apache-2.0
"""The paper's workloads have the paper's sizes, and a tensor that went another way is found out."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

import bench_paper
from bench_paper import COPY, RPC, TCP, ZERO, Workload, groups_of
from paper_models import MODELS, Model
from tf_measure import Result, Use, Way

# Of the paper: MiB and variables.
SIZES = {
    "AlexNet": (176.42, 16),
    "Inception-v3": (92.90, 196),
    "VGG-16": (512.32, 32),
    "LSTM": (35.93, 14),
    "GRU": (27.92, 11),
    "FCN-5": (204.47, 10),
}


@pytest.mark.parametrize("name", SIZES)
def test_shapes_add_up_to_what_the_paper_says(name: str) -> None:
    shapes = MODELS[name].shapes
    nbytes = sum(4 * math.prod(shape) for shape in shapes)
    assert (round(nbytes / 2**20, 2), len(shapes)) == SIZES[name]
    assert min(map(min, shapes)) > 0


def test_there_are_six() -> None:
    assert set(MODELS) == set(SIZES)


def test_other_shapes_are_refused() -> None:
    model: Model = MODELS["GRU"]
    with pytest.raises(ValueError, match=r"GRU: 10 variables of 27\.92 MiB, not 11"):
        replace(model, shapes=model.shapes[:-1])


LOAD = Workload(MODELS["GRU"], 1, 0.0, 0, False)
STEPS = 5


def _used(**changes: Any) -> Use:
    """Counters of STEPS steps as they should be for zerocp, but for the changes."""
    tensors, large = STEPS * LOAD.tensors, STEPS * LOAD.large
    sent = {"static": (tensors, STEPS * LOAD.nbytes)} | changes.pop("paths", {})
    none = (0, 0)
    paths = {
        path: dict(zip(("sent_tensors", "sent_bytes"), sent.get(path, none), strict=True))
        for path in ("static", "bounded", "inline", "dynamic", "bounce", "rpc")
    }
    stats = {
        "paths": paths,
        "rpc_reasons": {},
        "transports": {},
        "peers": [],
        "control": {"/job:worker/replica:0/task:1": {"grpc_calls": changes.get("grpc_calls", 0)}},
        "fetched": {"in_place": {"tensors": changes.get("in_place", large)}},
    }
    return Use([stats])


def faults_of(load: Workload, result: Result) -> list[str]:
    return list(bench_paper.faults_of(load, load.case(verify=True), result))


def _faults(way: Way, use: Use, loopback: float = 0.0) -> list[str]:
    return faults_of(LOAD, Result([[1.0] * STEPS], way, steps=STEPS, carried=[loopback], use=use))


def _rpc(asked: int = LOAD.tensors, grpc_calls: int = 0) -> Use:
    paths = {"static": (0, 0), "rpc": (STEPS * asked, STEPS * LOAD.nbytes)}
    return _used(paths=paths, in_place=0, grpc_calls=grpc_calls)


def test_counters_as_they_should_be() -> None:
    assert _faults(ZERO, _used()) == []
    assert _faults(COPY, _used(in_place=0)) == []
    assert _faults(RPC, _rpc()) == []
    assert _faults(TCP, Use([]), loopback=LOAD.nbytes) == []


@pytest.mark.parametrize(
    ("way", "use", "fault"),
    [
        (ZERO, _used(in_place=3), "large tensors were copied"),
        (ZERO, _used(paths={"dynamic": (1, 4)}), "1 tensors did not go to their planned places"),
        (COPY, _used(), "were not copied"),
        (RPC, _rpc(asked=3), "only 3 tensors of a step were asked for"),
        (RPC, _rpc(grpc_calls=2), "2 calls were made over gRPC"),
        (TCP, Use([]), "moved only 0 B over loopback"),
    ],
)
def test_a_tensor_that_went_another_way_is_a_fault(way: Way, use: Use, fault: str) -> None:
    assert any(fault in each for each in _faults(way, use))


def test_a_step_that_did_not_compute_is_a_fault() -> None:
    computing = replace(LOAD, compute_s=0.95)
    (fault,) = faults_of(computing, Result([[1.0, 0.9]], ZERO, steps=STEPS, use=_used()))
    assert fault == "a step took 900 ms, less than it computes"


def test_a_case_is_named_and_counts_both_directions() -> None:
    case = Workload(MODELS["FCN-5"], 2, 8 * 0.0049, 8, False).case(verify=True)
    assert case.name == "FCN-5, 2 workers, batch 8"
    assert case.step_bytes == 4 * MODELS["FCN-5"].nbytes


def test_ways_take_turns_alone_where_they_do_not_fit_into_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ways = [TCP, RPC, COPY, ZERO]
    for gigabytes, groups in ((1000, [ways]), (40, [[way] for way in ways])):
        text = f"MemAvailable: {gigabytes * 10**6} kB\n"
        monkeypatch.setattr(bench_paper.Path, "read_text", lambda _, text=text: text)
        assert groups_of(MODELS["VGG-16"], 3, ways) == groups

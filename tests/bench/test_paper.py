# SPDX-License-Identifier: Apache-2.0
"""The paper's workloads have the paper's sizes, and a tensor that went another way is found out."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from bench_paper import COPY, RPC, TCP, ZERO, Case, faults_of, memory_needed, plan_cases
from paper_models import MODELS, Model
from tf_measure import Result, Samples, Use, Way

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


CASE = Case(MODELS["GRU"], 1, 0.0, 0, False)
STEPS = 5


def _used(**changes: Any) -> Use:
    """Counters of STEPS steps as they should be for zerocp, but for the changes."""
    tensors, large = STEPS * CASE.tensors, STEPS * CASE.large
    sent = {"static": (tensors, STEPS * CASE.nbytes)} | changes.pop("paths", {})
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


def _faults(way: Way, use: Use, loopback: float = 0.0) -> list[str]:
    samples = Samples(blocks=[[1.0] * STEPS], steps=STEPS, carried=[loopback])
    return list(faults_of(CASE, Result(way, samples, use, use)))


def _rpc(asked: int = CASE.tensors, grpc_calls: int = 0) -> Use:
    paths = {"static": (0, 0), "rpc": (STEPS * asked, STEPS * CASE.nbytes)}
    return _used(paths=paths, in_place=0, grpc_calls=grpc_calls)


def test_counters_as_they_should_be() -> None:
    assert _faults(ZERO, _used()) == []
    assert _faults(COPY, _used(in_place=0)) == []
    assert _faults(RPC, _rpc()) == []
    assert _faults(TCP, Use([]), loopback=CASE.nbytes) == []


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
    samples = Samples(blocks=[[1.0, 0.9]], steps=STEPS)
    computing = replace(CASE, compute_s=0.95)
    (fault,) = faults_of(computing, Result(ZERO, samples, _used(), _used()))
    assert fault == "a step took 900 ms, less than it computes"


def test_batches_compute_in_proportion() -> None:
    cases = plan_cases(MODELS["FCN-5"], 2, [0, 10], [8], False)
    assert [case.compute_s for case in cases] == pytest.approx([0, 0.01, 8 * 0.0049])
    assert cases[-1].name == "FCN-5, 2 workers, batch 8"
    assert cases[-1].nbytes == 4 * MODELS["FCN-5"].nbytes


def test_more_workers_need_more_memory() -> None:
    vgg = MODELS["VGG-16"]
    needed = [memory_needed(vgg, workers, [TCP, RPC, COPY, ZERO]) for workers in (1, 3)]
    assert 4 * vgg.nbytes < needed[0] < needed[1] - 2 * vgg.nbytes

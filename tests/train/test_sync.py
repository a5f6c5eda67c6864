# SPDX-License-Identifier: Apache-2.0
"""Synchronizers that need collective operations only: in Keras's fit, and their parts on a real group."""

from __future__ import annotations

import math
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rdmatensor import Device, Group
from rdmatensor.train.sync.compression import Compression, PowerSGD, Quantized, TopK
from rdmatensor.train.sync.periods import QSR, AdaComm, Period, Quality, as_period
from train.ranks import run

pytestmark = pytest.mark.timeout(600)
SIZE = 3


def _on_group(act: Any) -> list[Any]:
    """What `act(group)` gives at each member of a group."""
    answers: list[Any] = [None] * SIZE
    root = Device("root")

    def member(rank: int) -> None:
        device = root if rank == 0 else Device(f"member {rank}")
        try:
            with Group(device, rank, SIZE, root.address, "compression", 60.0) as group:
                answers[rank] = act(group)
                group.barrier(60.0)
        except Exception as error:
            answers[rank] = error
        finally:
            if device is not root:
                device.close()

    threads = [threading.Thread(target=member, args=(rank,)) for rank in range(SIZE)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    root.close()
    for answer in answers:
        if isinstance(answer, Exception):
            raise answer
    return answers


SHAPES = [(7, 5), (5,), (3, 3, 4, 6), (0,), (11,)]
COUNT = sum(math.prod(shape) for shape in SHAPES)
KINDS: list[Compression] = [
    TopK(0.1),
    TopK(0.1, None),
    TopK(1.0, "int8"),
    Quantized("int8"),
    Quantized("fp8"),
    PowerSGD(1),
]


@pytest.fixture(scope="module")
def compressed() -> list[Any]:
    """By member and by kind: vectors, results, and errors in the end."""

    def act(group: Group) -> Any:
        found = []
        for kind in KINDS:
            own = kind.fresh()
            numbers = np.random.default_rng(group.rank)
            vectors = numbers.standard_normal((6, COUNT)).astype(np.float32)
            results = [own.mean(group, each, SHAPES, "test") for each in vectors[:3]]
            other = kind.fresh()
            other.restore({name: np.array(each) for name, each in own.state().items()})
            results += [other.mean(group, each, SHAPES, "test") for each in vectors[3:]]
            strange = vectors[0].copy()
            strange[1] = np.inf if group.rank == 1 else strange[1]
            kept = {name: np.array(each) for name, each in other.state().items()}
            unknown = other.mean(group, strange, SHAPES, "test")
            found.append((vectors, np.array(results), kept, dict(other.state()), unknown))
        return found

    return _on_group(act)


@pytest.mark.parametrize("number", range(len(KINDS)), ids=[type(kind).__name__ for kind in KINDS])
def test_compression(compressed: list[Any], number: int) -> None:
    """All members have one result; nothing is lost, only late; errors survive a backup and an infinity."""
    members = [each[number] for each in compressed]
    for _, results, *_ in members:
        np.testing.assert_array_equal(results, members[0][1])
    wanted = np.mean([vectors.sum(0) for vectors, *_ in members], axis=0)
    errors = np.mean([kept["error"] for *_, kept, _, _ in members], axis=0)
    if isinstance(KINDS[number], Quantized):
        errors = errors + np.concatenate([each[2]["strip"] for each in members])[:COUNT]
    np.testing.assert_allclose(members[0][1].sum(0) + errors, wanted, atol=2e-5)
    for _, _, kept, after, unknown in members:
        assert np.isnan(unknown).all()
        for name, each in kept.items():
            np.testing.assert_array_equal(after[name], each)


def test_compression_sends_less(compressed: list[Any]) -> None:
    """TopK with one tenth has zeros elsewhere; a result without compression is the mean."""
    results = compressed[0][0][1]
    assert (np.count_nonzero(results, axis=1) <= SIZE * math.ceil(0.1 * COUNT)).all()

    def plain(group: Group) -> Any:
        vector = np.full(COUNT, float(group.rank), np.float32)
        return Compression().mean(group, vector, SHAPES, "test")

    for answer in _on_group(plain):
        np.testing.assert_allclose(answer, 1.0)


def _constant(values: Any) -> Any:
    return values


def test_quality_lengthens_until_averaging_costs() -> None:
    period = Quality(bound=0.02, longest=32)
    found, loss = [], 2.0
    for _ in range(12):
        steps = period.steps
        for step in range(steps):
            # From 8 steps on, the common model is worse than what workers had.
            period.observe(loss + (0.1 if step in (1, 2) and steps >= 8 else 0.0))
            loss *= 0.999
        found.append(period.following(0.1, _constant))
    assert found[:3] == [2, 4, 8]
    assert max(found) == 8
    assert min(found[3:]) == 4
    other = Quality()
    other.restore(period.state())
    assert other.steps == period.steps


def test_periods_follow_rate_and_loss() -> None:
    qsr = QSR(alpha=0.2, base=4)
    assert [qsr.following(rate, _constant) for rate in (0.2, 0.05, 0.02)] == [4, 16, 100]
    adacomm = AdaComm(16)
    found = []
    for loss in (4.0, 1.0, 0.25, 0.001):
        adacomm.observe(loss)
        found.append(adacomm.following(0.1, _constant))
    assert found == [16, 8, 4, 1]
    assert adacomm.following(0.1, _constant) == 1  # without a loss, it stays
    assert as_period(3).following(1.0, _constant) == 3
    for wrong in (lambda: Period(0), lambda: Quality(0.0), lambda: TopK(0.0), lambda: PowerSGD(0)):
        with pytest.raises(ValueError, match=r"give|share"):
            wrong()


SAME = ["AllReduce()", "LocalSGD(period=1)", "DiLoCo(period=1, rate=1.0, momentum=0.0)"]
# Each process sees half of the classes, so no model is right without the others.
LEARN = [
    "AllReduce(compression=TopK(0.05))",
    "AllReduce(compression=PowerSGD(2))",
    "AllReduce(compression=Quantized('fp8'))",
    "LocalSGD(period=5)",
    "LocalSGD(period=Quality(0.05, longest=8))",
    "DiLoCo(period=5, fragments=2)",
    "DiLoCo(period=5, compression=TopK(0.1))",
    "GossipPGA(average_every=4)",
]
ACCURATE = 0.8


def test_a_period_of_one_is_synchronous(tmp_path: Path) -> None:
    for answer in run("synced", 2, tmp_path, each=SAME):
        for name in SAME[1:]:
            np.testing.assert_allclose(answer[name], answer[SAME[0]], atol=1e-5, err_msg=name)


def test_processes_learn_what_others_saw(tmp_path: Path) -> None:
    first, second = run("learn", 2, tmp_path, each=LEARN, epochs=8)
    for name in LEARN:
        assert first[name][1] == second[name][1], name  # they end with one model
        assert first[name][0] > ACCURATE, name


def test_a_rule_that_does_not_average_is_noticed(tmp_path: Path) -> None:
    for answer in run("learn", 2, tmp_path, each=["LocalSGD(period=5)"], epochs=8, broken=True):
        assert answer["LocalSGD(period=5)"][0] < 0.6


def test_hierarchy_of_two_hosts(tmp_path: Path) -> None:
    each = ["AllReduce()", "Hierarchical(host_size=2, between=LocalSGD(period=1))",
            "Hierarchical(between=LocalSGD(period=1))"]  # fmt: skip
    for answer in run("synced", 4, tmp_path, each=each):
        for name in each[1:]:
            np.testing.assert_allclose(answer[name], answer[each[0]], atol=1e-5, err_msg=name)


# Steps in between two exchanges, and after an exchange, are kept: 8 steps are.
EXACT = [
    "AllReduce(compression=TopK(0.2))",
    "AllReduce(compression=Quantized('int8'))",
    "LocalSGD(period=Quality(0.02, first=3))",
    "DiLoCo(period=3, fragments=2, compression=TopK(0.5))",
    "Hierarchical(host_size=1, between=LocalSGD(period=AdaComm(3)))",
]
ASYNCHRONOUS = [
    "SGP()",
    "EASGD(period=2)",
    "Decoupled(period=4, grace=0.01)",
]


@pytest.fixture(scope="module")
def backups(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Any]]:
    """Backups of each, and what two processes did with them."""
    folder = tmp_path_factory.mktemp("backups")
    return folder, run("resumes", 2, folder, each=EXACT + ASYNCHRONOUS, backups=str(folder))


@pytest.mark.parametrize("name", EXACT)
def test_goes_on_from_a_backup(backups: tuple[Path, list[Any]], name: str) -> None:
    for answer in backups[1]:
        whole, again = answer[name]
        assert whole == again
        assert again == backups[1][0][name][1]


def test_goes_on_with_other_processes(backups: tuple[Path, list[Any]], tmp_path: Path) -> None:
    folder, two = backups
    three = run("resumed", 3, tmp_path, each=EXACT + ASYNCHRONOUS, backups=str(folder))
    for name in EXACT + ASYNCHRONOUS:
        answers = [answer[name] for answer in three]
        if name.startswith("Hierarchical"):
            assert "start 2 processes, not 3" in answers[0]
            continue
        assert name in ASYNCHRONOUS or answers[1:] == answers[:-1], name
        # The last epoch of three is not far from that of two, whose mean is what they went on from.
        wanted = np.mean([answer[name][1] for answer in two], axis=0)
        assert np.abs(np.mean(answers, axis=0) - wanted).max() < 0.1, name

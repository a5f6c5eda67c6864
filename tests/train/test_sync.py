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
from rdmatensor.train.run.membership import Membership
from rdmatensor.train.run.subgroup import gather_texts
from rdmatensor.train.sync.compression import Compression, PowerSGD, Quantized, TopK
from rdmatensor.train.sync.diloco import DiLoCo
from rdmatensor.train.sync.gossip import SGP
from rdmatensor.train.sync.gossip_pga import GossipPGA
from rdmatensor.train.sync.hierarchical import Hierarchical
from rdmatensor.train.sync.local_sgd import LocalSGD
from rdmatensor.train.sync.periods import QSR, Period, Quality, as_period
from support import WHOLE
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
            with Group(device, rank, SIZE, root.address, "compression", PATIENCE) as group:
                answers[rank] = act(group)
                group.barrier(PATIENCE)
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


PATIENCE = 60.0
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
DECAY = 0.75
DECAYING = TopK(0.1, None, DECAY)


@pytest.fixture(scope="module")
def compressed() -> list[Any]:
    """By member and by kind: vectors, results, and errors in the end."""

    def act(group: Group) -> Any:
        found = []
        for kind in (*KINDS, DECAYING):
            own = kind.fresh()
            numbers = np.random.default_rng(group.rank)
            vectors = numbers.standard_normal((6, COUNT)).astype(np.float32)
            results = [own.mean(group, each, SHAPES, "test", PATIENCE) for each in vectors[:3]]
            other = kind.fresh()
            other.restore({name: np.array(each) for name, each in own.state().items()})
            results += [other.mean(group, each, SHAPES, "test", PATIENCE) for each in vectors[3:]]
            strange = vectors[0].copy()
            strange[1] = np.inf if group.rank == 1 else strange[1]
            kept = {name: np.array(each) for name, each in other.state().items()}
            unknown = other.mean(group, strange, SHAPES, "test", PATIENCE)
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


def test_an_error_may_decay(compressed: list[Any]) -> None:
    """As in SparseLoCo: what a member keeps of what it left out loses its weight from step to step."""
    count = math.ceil(DECAYING.share * COUNT)
    wanted = np.zeros((6, COUNT), np.float32)
    for vectors, _, kept, *_ in (each[-1] for each in compressed):
        error = np.zeros(COUNT, np.float32)
        for number, vector in enumerate(vectors):
            whole = vector + np.float32(DECAY) * error
            least = np.sort(np.abs(whole))[-count]
            sent = np.where(np.abs(whole) >= least, whole, 0)
            error = whole - sent
            wanted[number] += sent / SIZE
        np.testing.assert_allclose(kept["error"], error, atol=1e-6)
    np.testing.assert_allclose(compressed[0][-1][1], wanted, atol=1e-6)


def test_compression_sends_less(compressed: list[Any]) -> None:
    """TopK with one tenth has zeros elsewhere; a result without compression is the mean."""
    results = compressed[0][0][1]
    assert (np.count_nonzero(results, axis=1) <= SIZE * math.ceil(0.1 * COUNT)).all()

    def plain(group: Group) -> Any:
        vector = np.full(COUNT, float(group.rank), np.float32)
        return Compression().mean(group, vector, SHAPES, "test", PATIENCE)

    for answer in _on_group(plain):
        np.testing.assert_allclose(answer, 1.0)


class _Deadlines:
    """A group that notes the deadlines of its operations."""

    def __init__(self, group: Group) -> None:
        self._group, self.seen = group, set[Any]()

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._group, name)

        def call(*arguments: Any, **options: Any) -> Any:
            self.seen.add((name, options.get("timeout")))
            return value(*arguments, **options)

        return call if callable(value) else value


def test_operations_wait_as_long_as_init_was_told() -> None:
    """Where none is given, the setting DEADLINE_MS counts, which is for hardware and not for training."""

    def act(group: Group) -> Any:
        run: Any = Membership()
        run.group = noting = _Deadlines(group)
        run.rank, run.size, run.device = group.rank, group.size, group._device
        run.timeout = PATIENCE - 1
        for kind in KINDS:
            kind.fresh().mean(run.group, np.ones(COUNT, "f"), SHAPES, "test", run.timeout)
        nested = Hierarchical(between=LocalSGD(1))
        nested._here = nested._leaders = run
        each = [LocalSGD(Quality(first=1)), DiLoCo(1, fragments=1), GossipPGA(1), SGP(), nested]
        for sync in each:
            sync.begin(run, x := np.ones(8, "f"))
            sync.exchange(x, 1, 0.1)
            sync.conclude(x, 1)
        group.barrier(PATIENCE)
        for sync in each[2:4]:
            sync.close()
        gather_texts(run, "here")
        return noting.seen

    for seen in _on_group(act):
        assert {name for name, _ in seen} >= {"all_reduce", "all_gather", "all_to_all", "broadcast"}
        assert {timeout for _, timeout in seen} == {PATIENCE - 1}, seen


def test_diloco_begins_with_one_model() -> None:
    """Also where each process has one of its own, as after shutdown() and init() without fit()."""

    def act(group: Group) -> Any:
        run: Any = Membership()
        run.group, run.size, run.timeout = group, group.size, PATIENCE
        sync, x = DiLoCo(1, learning_rate=1.0, momentum=0.0), np.full(4, group.rank, "f")
        sync.begin(run, x)
        assert (x == group.rank).all()
        sync.exchange(x, 1, 0.1)
        sync.begin(run, np.zeros(3, "f"))  # a layer is trained no more
        return x.tolist()

    assert _on_group(act) == [[1.0] * 4] * SIZE


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
    assert as_period(3).following(1.0, _constant) == 3
    for wrong in (lambda: Period(0), lambda: Quality(0.0), lambda: TopK(0.0), lambda: PowerSGD(0)):
        with pytest.raises(ValueError, match=r"give|share"):
            wrong()


SAME = [
    "AllReduce()",
    "LocalSGD(period=1)",
    "DiLoCo(period=1, learning_rate=1.0, momentum=0.0)",
    "SSP(slack=0)",
]
# Each process sees half of the classes, so no model is right without the others.
LEARN = [
    "TopK(0.05)",
    "Quantized('fp8')",
    "LocalSGD(period=5)",
    "DiLoCo(period=5, fragments=2)",
    "GossipPGA(average_every=4)",
]
ACCURATE = 0.8


@pytest.mark.long
def test_a_period_of_one_and_no_slack_are_synchronous(tmp_path: Path) -> None:
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
        assert "processes have different models" in answer["LocalSGD(period=5)"][0]


@pytest.mark.long
def test_hierarchy_of_two_hosts(tmp_path: Path) -> None:
    """It is synchronous with a period of one, and goes on from a backup, in which leaders have more."""
    once = ["AllReduce()", "Hierarchical(host_size=2, between=LocalSGD(period=1))",
            "Hierarchical(between=LocalSGD(period=1))"]  # fmt: skip
    inside = "TopK(0.2)"
    each = [f"Hierarchical(host_size=2, inside={inside}, between=DiLoCo(3))"]
    how: dict[str, Any] = {"backups": str(tmp_path), "adam": False, "late": True}
    answers = run("resumes", 4, tmp_path, each=each, once=once, **how)
    for answer in answers:
        for name in once:
            np.testing.assert_allclose(answer[name][0], answer[once[0]][0], atol=1e-5, err_msg=name)
        for name in each:
            whole, again = answer[name]
            assert whole == again, name
            assert again == answers[0][name][1], name


# Steps in between two exchanges, and after an exchange, are kept: 8 steps are.
FIXED, BY_RATE = "LocalSGD(period=3)", "LocalSGD(period=QSR(0.02, base=3))"
EXACT = [
    "TopK(0.2)",
    BY_RATE,
    "PowerSGD(2)",
    "DiLoCo(period=3, fragments=2, compression=TopK(0.5, decay=0.9))",
    "Hierarchical(host_size=1, between=LocalSGD(period=Quality(first=3)))",
]
ASYNCHRONOUS = ["SGP()", "SSP(slack=0)"]
if WHOLE:
    EXACT += [
        "Quantized('int8')",
        "LocalSGD(period=Quality(0.02, first=3))",
    ]
    ASYNCHRONOUS += [
        "PullGossip()",
        "EASGD(period=2)",
        "PushGossip()",
        "GossipPGA(average_every=3)",
        "Decoupled(period=4, grace=0.01)",
    ]


@pytest.fixture(scope="module")
def backups(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Any]]:
    """Backups of each, and what two processes did with them."""
    folder = tmp_path_factory.mktemp("backups")
    each = EXACT + ASYNCHRONOUS
    return folder, run("resumes", 2, folder, each=each, once=[FIXED], backups=str(folder))


@pytest.mark.parametrize("name", EXACT)
def test_goes_on_from_a_backup(backups: tuple[Path, list[Any]], name: str) -> None:
    for answer in backups[1]:
        whole, again = answer[name]
        assert whole == again
        assert again == backups[1][0][name][1]


@pytest.mark.parametrize("name", ASYNCHRONOUS)
def test_goes_on_near_a_backup(backups: tuple[Path, list[Any]], name: str) -> None:
    """What a process hears depends on the time, but without slack."""
    for answer in backups[1]:
        whole, again = np.array(answer[name])
        assert np.abs(whole - again).max() < (1e-4 if name == "SSP(slack=0)" else 0.1)


def test_a_period_follows_the_rate_of_the_optimizer(backups: tuple[Path, list[Any]]) -> None:
    """QSR begins with three steps, too."""
    for answer in backups[1]:
        assert answer[BY_RATE][0] != answer[FIXED][0]


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

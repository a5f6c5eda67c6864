# SPDX-License-Identifier: Apache-2.0
"""CHECKSUM=crc32c: a tensor that changed on its way fails its step, whichever way it came, and nothing else
does. Where the receiver compares nothing, the very same change passes unseen."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import tensorflow as tf

from plugin.planned import PLANNED, some_number
from plugin.transports import TRANSPORT, needs_shm
from support.clusters import Cluster
from support.graphs import TASK0, TASK1, session, v1
from support.waits import until

TASK2 = "/job:worker/task:2"
SENDER = "/job:worker/replica:0/task:1/device:CPU:0"
RECEIVER = "/job:worker/replica:0/task:0/device:CPU:0"
# Faults can be set at any time, if the transports were wrapped for them.
WRAPPED = "corrupt_write=#1000000000"
ON = {"RDMATENSOR_CHECKSUM": "crc32c", "RDMATENSOR_TEST_PROMOTE_AFTER": "0"}


class Three(NamedTuple):
    """Task 1 sends; task 0 compares, task 2 has CHECKSUM=off."""

    cluster: Cluster
    flip: Path

    def strike(self, how: str, receiver: int) -> None:
        """The next tensor that task 1 sends to `receiver` changes on its way."""
        if how == "flip":
            self.flip.touch()
        else:
            where = receiver if how == "corrupt_read" else 1
            self.cluster.tasks[where].ask(f"faults {how}=#1")

    def happened(self, how: str) -> bool:
        if how == "flip":
            return not self.flip.exists()
        counts = [task.ask(f"faults {WRAPPED}") for task in self.cluster.tasks]
        return any(each[how] for each in counts)

    def checksums(self, index: int = 0) -> dict[str, int]:
        result: dict[str, int] = self.cluster.stats(index)["checksums"]
        return result


def _three(folder: Path, library: Path, faults: str) -> Iterator[Three]:
    flip = folder / "flip"
    common = {"RDMATENSOR_FAULTS": faults}
    sends = {"LD_PRELOAD": str(library), "FAULTS_FLIP": str(flip)}
    settings = {0: common | ON, 1: common | ON | sends, 2: common | ON}
    settings[2] = settings[2] | {"RDMATENSOR_CHECKSUM": "off"}
    cluster = Cluster(["grpc+rdma"] * 3, folder, settings)
    yield Three(cluster, flip)
    cluster.close()


@pytest.fixture(scope="module")
def mapped(faults_library: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Three]:
    """As on shared memory."""
    yield from _three(tmp_path_factory.mktemp("mapped"), faults_library, WRAPPED)


@pytest.fixture(scope="module")
def moved(faults_library: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Three]:
    """As over RDMA: tensors are written and read."""
    yield from _three(tmp_path_factory.mktemp("moved"), faults_library, WRAPPED + ",unmapped=1")


@pytest.fixture
def three(request: pytest.FixtureRequest) -> Three:
    shared: Three = request.getfixturevalue(request.param)
    shared.cluster.reset_stats()
    return shared


class Case(NamedTuple):
    three: str
    how: str
    path: str
    words: str  # of the error, how the bytes came
    elements: int
    known: bool = True  # does the graph tell the shape?
    several: int = 1
    kept: bool = False  # in a reference variable, which is updated in place


# Up to 4 KB in a group, up to 16 KB inline or copied.
CASES = {
    "inline": Case("mapped", "corrupt_notify", "inline", "inside its message", 1_000, False),
    "in_place": Case("mapped", "flip", "dynamic", "used in the sender's memory", 9_000, False),
    "large": Case("mapped", "flip", "dynamic", "used in the sender's memory", 1 << 20, False),
    "bounce": Case("mapped", "flip", "bounce", "used in the sender's", 9_000, False, kept=True),
    "placed": Case("mapped", "flip", "static", "written into its place)", 3_000),
    "placed_copy": Case("mapped", "flip", "static", "written into its place)", 9_000, kept=True),
    "fused": Case("mapped", "flip", "static", "written into its place, in a group", 100, several=3),
    "lent": Case("mapped", "flip", "static", "used in the sender's memory", 100_000),
    "read": Case("moved", "corrupt_read", "dynamic", "read from the sender's", 9_000, False),
    "written": Case("moved", "corrupt_write", "static", "written into its place)", 100_000),
    "written_fused": Case("moved", "corrupt_write", "static", "in a group", 100, several=3),
}
every_way = pytest.mark.parametrize(
    ("three", "case"),
    [
        pytest.param(case.three, case, marks=[needs_shm] if case.three == "mapped" else [])
        for case in CASES.values()
    ],
    ids=list(CASES),
    indirect=["three"],
)


def _build(case: Case) -> Any:
    """Tensors that are made on task 1, as they arrive on tasks 0 and 2."""
    with tf.device(TASK1):
        number = some_number()
        if case.kept:
            variable = v1.get_variable(
                "v", initializer=np.zeros(case.elements, "f"), use_resource=False
            )
            sent = [v1.assign(variable, tf.fill([case.elements], number))]
        else:
            sent = [tf.fill([case.elements], number + i) for i in range(case.several)]
        if not case.known:
            sent = [v1.placeholder_with_default(each, [None]) for each in sent]
    arrived = []
    for device in (TASK0, TASK2):
        with tf.device(device):
            arrived.append([tf.identity(each) for each in sent])
    return arrived


def _is_sound(values: list[Any]) -> bool:
    first = values[0][0]
    return all((value == first + i).all() for i, value in enumerate(values))


def _settle(three: Three, path: str, step: Callable[[], None]) -> None:
    """Until tensors go the way that they are meant to."""

    def goes() -> bool:
        three.cluster.reset_stats()
        step()
        paths = three.cluster.stats(1)["paths"]
        return (
            paths[path]["sent_tensors"]
            > 0
            == sum(paths[other]["sent_bytes"] for other in paths if other != path)
        )

    until(f"nothing goes by {path}", goes)
    three.cluster.reset_stats()


@every_way
def test_corrupted_tensor(three: Three, case: Case) -> None:
    with session(three.cluster, lambda: _build(case)) as opened:
        compared, passed = opened.built
        for fetches in (compared, passed):
            _settle(three, case.path, partial(opened.run, fetches))
        assert _is_sound(opened.run(compared))
        assert three.checksums()["verified"] == case.several
        for strike in (1, 2):
            three.strike(case.how, 0)
            with pytest.raises(tf.errors.DataLossError) as raised:
                opened.run(compared)
            assert three.happened(case.how)
            assert three.checksums()["corrupted"] == strike
            text = str(raised.value)
            assert (
                f" from {SENDER} to {RECEIVER} arrived corrupted: {4 * case.elements} bytes" in text
            )
            assert f"path {case.path} (" in text
            assert case.words in text
            assert f" over {TRANSPORT}, step " in text
            assert "RDMATENSOR_POLICY=grpc" in text
            # The next one is as good as ever.
            assert _is_sound(opened.run(compared))
        edge = text.split("tensor ")[1].split()[0]
        told = [line for line in three.cluster.log(0).splitlines() if f"tensor {edge} from" in line]
        assert len([line for line in told if "rdmatensor: ERROR" in line]) == 1, told

        # Task 2 takes what it gets.
        three.strike(case.how, 2)
        assert not _is_sound(opened.run(passed))
        assert three.happened(case.how)
        assert three.checksums(2) == {"sent": 0, "verified": 0, "corrupted": 0, "unchecked": 0}
        assert three.cluster.stats(1)["paths"]["rpc"]["sent_tensors"] == 0


@pytest.mark.parametrize("three", ["mapped", "moved"], indirect=True)
def test_what_is_sound(three: Three) -> None:
    """Of every size, none at all, dead, and such as go another way."""
    sizes = [0, 1, 3, 1_000, 5_000, 100_000, 4 << 20]

    def build() -> Any:
        with tf.device(TASK1):
            number = some_number()
            sent = [tf.fill([size], number) for size in sizes]
            words = tf.strings.as_string(number)
            low, high = tf.raw_ops.Switch(data=tf.fill([100], number), pred=number > 500)
        with tf.device(TASK0):
            arrived = [tf.identity(each) for each in sent]
            merged, _ = tf.raw_ops.Merge(inputs=[low + 0, high + 0])
            return arrived, tf.identity(words), merged

    with session(three.cluster, build) as opened:
        for _ in range(6):
            arrived, words, merged = opened.run(opened.built)
            for size, each in zip(sizes, arrived, strict=True):
                np.testing.assert_array_equal(each, np.full(size, float(words), "f"))
            np.testing.assert_array_equal(merged, np.full(100, float(words), "f"))
    found = three.checksums()
    # All but the empty one and the words; of the branches one each.
    assert found["verified"] >= 6 * (len(sizes) - 1 + 1)
    assert (found["corrupted"], found["unchecked"]) == (0, 0)
    assert three.checksums(1)["sent"] >= found["verified"]


@pytest.mark.parametrize("three", ["mapped"], indirect=True)
def test_sender_that_sends_none(three: Three) -> None:
    """Task 0 would compare, task 2 sends no checksums: its tensors pass, counted, with one warning."""

    def build() -> Any:
        with tf.device(TASK2):
            sent = [tf.fill([size], some_number()) for size in (10, 3_000, 100_000)]
        with tf.device(TASK0):
            return [tf.identity(each) for each in sent]

    with session(three.cluster, build) as opened:
        for _ in range(5):
            assert all((each == each[0]).all() for each in opened.run(opened.built))
    found = three.checksums()
    assert found["unchecked"] >= 5 * 3
    assert (found["verified"], found["corrupted"]) == (0, 0)
    said = [line for line in three.cluster.warnings(0) if "have no checksums" in line]
    assert len(said) == 1
    assert "/job:worker/replica:0/task:2" in said[0]
    assert "RDMATENSOR_CHECKSUM=crc32c" in said[0]
    assert sum(three.cluster.stats(2)["paths"][path]["sent_tensors"] for path in PLANNED) > 0

# SPDX-License-Identifier: Apache-2.0
"""The operations of rdmatensor.train: values, gradients, order, and what goes wrong."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.waits import AT_ONCE
from train.ranks import Ranks, run

pytestmark = pytest.mark.timeout(600)
SIZE = 3


def _expected(size: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """What each operation and its gradient give, for all ranks."""
    base = np.arange(4.0 * size).reshape(2 * size, 2)
    every = [base + 100.0 * rank for rank in range(size)]
    total = sum(every)
    parts = [np.split(each, size) for each in every]
    values = {
        "mean": [total / size] * size,
        "sum": [total] * size,
        "max": [every[-1]] * size,
        "min": [every[0]] * size,
        "product": [np.prod([each * 0.01 for each in every], 0)] * size,
        "scatter": np.split(total, size),
        "gather": [np.concatenate(every)] * size,
        "all_to_all": [np.concatenate([part[r] for part in parts]) for r in range(size)],
        "broadcast": [every[-1]] * size,
    }

    def weights(shape: tuple[int, ...]) -> list[Any]:
        numbers = np.arange(float(np.prod(shape))).reshape(shape)
        return [numbers + 1000.0 * rank for rank in range(size)]

    whole, part = weights((2 * size, 2)), weights((2, 2))
    gathered = sum(weights((2 * size * size, 2)))
    gradients = {
        "mean": [sum(whole) / size] * size,
        "sum": [sum(whole)] * size,
        "scatter": [np.concatenate(part)] * size,
        "gather": np.split(gathered, size),
        "all_to_all": [
            np.concatenate([np.split(each, size)[r] for each in whole]) for r in range(size)
        ],
        "broadcast": [sum(whole), *[np.zeros((2 * size, 2))] * (size - 1)],
    }
    return values, gradients


def test_values_and_gradients(tmp_path: Path) -> None:
    values, gradients = _expected(SIZE)
    for rank, answer in enumerate(run("operations", SIZE, tmp_path)):
        given, kept = answer["trimmed"]  # what is in use stays
        assert given >= 8 << 20 and kept == 1 << 20
        for how in ("eager", "function"):
            for name, expected in values.items():
                np.testing.assert_allclose(
                    answer[how][name], expected[rank], rtol=1e-5, err_msg=name
                )
            for name, expected in gradients.items():
                np.testing.assert_allclose(
                    answer[f"{how} gradients"][name], expected[rank], rtol=1e-5, err_msg=name
                )
        assert answer["ordered"]
        assert answer["shapes"] == {name: list(np.shape(x[rank])) for name, x in values.items()}


def test_sizes_that_are_not_known_when_a_function_is_traced(tmp_path: Path) -> None:
    answers = run("unknown_sizes", 2, tmp_path)
    for place, rows in enumerate((1, 3, 1)):
        every = [np.arange(4.0 * rows).reshape(2 * rows, 2) + 100.0 * rank for rank in (0, 1)]
        halves = [np.split(each, 2) for each in every]
        total = sum(every)
        for rank, answer in enumerate(answers):
            expected = {
                "sum": total,
                "scatter": np.split(total, 2)[rank],
                "gather": np.concatenate(every),
                "all_to_all": np.concatenate([half[rank] for half in halves]),
                "broadcast": every[1],
                # Each sum counts in both processes; so does what is gathered, or broadcast from rank 1.
                "gradient": 4 * total + 2 * total + 4 * every[rank] + 2 * every[rank]
                + (4 * every[1] if rank == 1 else 0),
            }  # fmt: skip
            for how in ("unknown", "anew"):
                for name, value in expected.items():
                    found = answer[how][place][name]
                    np.testing.assert_allclose(found, value, rtol=1e-5, err_msg=f"{how} {name}")
    for answer in answers:
        # Both functions, once or for each of the two sizes.
        assert (answer["unknown traces"], answer["anew traces"]) == (2, 4)
        assert answer["shapes"] == {name: [None, 2] for name in answer["shapes"]}


def test_types_and_sizes(tmp_path: Path) -> None:
    for sums, empty, largest, smallest in run("types", 2, tmp_path):
        for name, found in sums.items():
            assert found == [1, 3, 5, 7, 9], name
        assert empty == [0, 3]
        assert largest == smallest == 2


def test_over_tcp(tmp_path: Path) -> None:
    for sums, *_ in run("types", 2, tmp_path, {"RDMATENSOR_TRANSPORTS": "tcp"}):
        assert sums["float32"] == [1, 3, 5, 7, 9]


def test_operands_keep_their_values(tmp_path: Path) -> None:
    # With FLAT the result would need memory of its own.
    answers = run("in_place", 2, tmp_path, {"RDMATENSOR_GROUP_ALGORITHM": "direct"})
    for rank, (found, copied, (grown, size)) in enumerate(answers):
        for sizes in found:
            for each, expected in zip(sizes, [2 * rank + 2, 3, 12, 1.5, rank + 1], strict=True):
                assert each == [expected] * 2
        assert copied == 0
        assert grown >= size, "the result is not where the input was"


def test_order_is_the_programs(tmp_path: Path) -> None:
    for many, looped, nested in run("many_in_flight", 2, tmp_path):
        assert many == [3.0 * i for i in range(50)]
        assert looped == sum(3.0 + 2 * i if i % 3 == 0 else 2.0 for i in range(20))
        assert nested == 21


def test_disagreement_names_both(tmp_path: Path) -> None:
    words = {
        "shape": ["weights", "[2]", "[3]"],
        "name": ["of the loss", "of the model"],
        "kind": ["all_reduce of float32", "all_gather of float32"],
        "type": ["all_reduce of float32", "all_reduce of float64"],
        "mean": ["values, times 0.5"],
        "steps": ["processes have 2 to 4 batches", "uneven=True"],
        "model": ["(Dense) is not the same", "units is 16 at rank 0, and 17 at rank 1"],
        "gradients": ["gradients 1 of 1 of sgd: number 1 is two/", "head0/bias", "head1/bias"],
        "synchronizers": ["AllReduce(bucket_bytes='auto'", "LocalSGD(period="],
    }
    kinds = {"model": "UsageError", "steps": "UsageError"}
    for answers in run("disagreements", 2, tmp_path):
        for how, answer in answers.items():
            assert answer["kind"] == kinds.get(how, "InvalidArgumentError"), answer
            for word in words[how]:
                assert word in answer["says"]


@pytest.mark.parametrize("dead", [0, 2])
def test_killed_process(tmp_path: Path, dead: int) -> None:
    with Ranks("killed", SIZE, tmp_path, rank=dead) as ranks:
        ranks.wait_for(dead, "training")
        killed = time.time()
        ranks.kill(dead)
        for rank in set(range(SIZE)) - {dead}:
            answer = ranks.answer(rank)
            assert answer["kind"] == "AbortedError", answer
            assert f"rank {dead}" in answer["says"] or f"member {dead}" in answer["says"], answer
            assert answer["at"] - killed < AT_ONCE


def test_a_process_that_does_not_come(tmp_path: Path) -> None:
    with Ranks("late", 2, tmp_path) as ranks:
        ranks.wait_for(1, "idle")
        answer = ranks.answer(0)
        assert answer["kind"] == "DeadlineExceededError", answer
        assert "of both" in answer["says"]
        assert "member 1" in answer["says"], answer


def test_a_process_that_does_not_start(tmp_path: Path) -> None:
    settings = {"RANK": "0", "WORLD_SIZE": "3"}
    with Ranks("absent", 1, tmp_path, settings) as ranks:
        answer = ranks.answer(0)
        assert answer["kind"] == "DeadlineExceeded", answer
        assert "1" in answer["says"] and "2" in answer["says"]


def test_one_process_is_left_alone(tmp_path: Path) -> None:
    assert run("alone", 1, tmp_path) == [[1, True]]


def test_leaving_and_joining_again(tmp_path: Path) -> None:
    for first, second, says in run("again", 2, tmp_path):
        assert (first, second) == (3, 21)
        assert "has left the group: call rdmatensor.train.init() again" in says


def test_xla_is_refused_with_the_remedy(tmp_path: Path) -> None:
    for says in run("compiled", 2, tmp_path):
        assert "jit_compile=False" in says

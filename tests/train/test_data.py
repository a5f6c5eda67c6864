# SPDX-License-Identifier: Apache-2.0
"""shard(): each element goes to one process, or all processes get an error that tells why not."""

from __future__ import annotations

from typing import Any

import pytest

from train.ranks import run

pytestmark = pytest.mark.timeout(600)
SIZE = 2


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    return run("shards_of_all", SIZE, tmp_path_factory.mktemp("shards"))


@pytest.fixture(scope="module")
def datasets(found: list[Any]) -> list[dict[str, Any]]:
    return [each[0] for each in found]


@pytest.fixture(scope="module")
def arrays(found: list[Any]) -> list[Any]:
    return [each[1:] for each in found]


@pytest.mark.parametrize("name", ["plain", "loaded", "interleaved", "generated"])
def test_datasets_are_divided(datasets: list[dict[str, Any]], name: str) -> None:
    assert [each[name] for each in datasets] == [[0, 2, 4, 6], [1, 3, 5, 7]]


def test_shuffles_with_one_seed_are_divided(datasets: list[dict[str, Any]]) -> None:
    first, second = (each["seeded"] for each in datasets)
    for epoch in (slice(0, 4), slice(4, 8)):
        assert sorted(first[epoch] + second[epoch]) == list(range(8))
    assert len({*map(tuple, (first[:4], first[4:]))}) == 2  # another order in each epoch
    assert [len(each["drawn"]) for each in datasets] == [4, 4]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("shuffled", "without a seed (ShuffleDataset)"),
        ("in front of a cache", "rt.shard(dataset).shuffle(...)"),
        ("listed", "shuffle=False"),
        ("shuffled inside", "(ShuffleDatasetV3)"),
        ("sloppy", "deterministic=True"),
        ("sloppy files", "ParallelInterleaveDataset"),
        ("sloppy at the end", "the option deterministic=False"),
        ("drawn without a seed", "(RandomDataset)"),
        ("dropped", "(RandomUniform)"),
        ("own seed", "or another order or seed, in ranks [1]"),
        ("own rows", "in ranks [1]"),
        ("own files", "sorted file names"),
        ("few", "there are 1 elements for 2 processes"),
    ],
)
def test_datasets_without_a_common_order_are_refused(
    datasets: list[dict[str, Any]], name: str, words: str
) -> None:
    for each in datasets:
        assert each[name].startswith("UsageError: ") and words in each[name], each[name]


ROWS: dict[str, Any] = {
    "array": int,
    "list": int,
    "tensor": int,
    "iterator": int,
    "none": (lambda i: i, None),
    "dict": {"a": int, "b": [int, lambda i: [i]]},
    "lists": (lambda i: [i, i], str),
    "csr": lambda i: [i * (i == j) for j in range(9)],
    "coo": lambda i: [i * (i == j) for j in range(9)],
    "sparse": lambda i: [i * (i == j) for j in range(9)],
    "ragged": lambda i: [i] * i,
    "bits": lambda i: float(round(i / 3)),
}


def _expected(form: Any, rows: range) -> Any:
    """JSON has lists only."""
    if isinstance(form, dict):
        return {name: _expected(each, rows) for name, each in form.items()}
    if isinstance(form, (list, tuple)):
        return [_expected(each, rows) for each in form]
    return None if form is None else [form(i) for i in rows]


@pytest.mark.parametrize("name", ROWS)
def test_arrays_are_divided(arrays: list[Any], name: str) -> None:
    for rank, (_, found) in enumerate(arrays):
        assert found[name] == _expected(ROWS[name], range(rank, 8, SIZE))


@pytest.mark.parametrize("name", ["all", "all of an iterator"])
def test_the_remainder_can_be_had(arrays: list[Any], name: str) -> None:
    assert [found[name] for _, found in arrays] == [[0, 2, 4, 6, 8], [1, 3, 5, 7]]


def test_batches_of_a_program_are_divided_in_each_epoch(arrays: list[Any]) -> None:
    epochs = [each for each, _ in arrays]
    assert epochs[0][0] == [[4 * i, 4 * i + 1] for i in range(4)]
    orders = []
    for first, second in zip(*epochs, strict=True):
        numbers = [number for batch in (*first, *second) for number in batch]
        assert len(set(numbers)) == 16  # of 18, because one batch fills no round
        orders.append(tuple(numbers))
    assert len(set(orders)) == 3


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("other lengths", "equally many rows, not tuple with [8, 9] rows"),
        ("few", "start fewer processes"),
        ("number", "not int with [-1] rows"),
        ("loader", "DistributedSampler(dataset, rt.size(), rt.rank(), drop_last=True)"),
        ("own order", "in ranks [1] than in rank 0"),
        ("own labels", "in ranks [1] than in rank 0"),
        ("own sparse", "in ranks [1] than in rank 0"),
        ("own length", "in ranks [1] than in rank 0"),
    ],
)
def test_other_data_is_refused(arrays: list[Any], name: str, words: str) -> None:
    for _, found in arrays:
        assert found[name].startswith("UsageError: ") and words in found[name], found[name]

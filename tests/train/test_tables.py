# SPDX-License-Identifier: Apache-2.0
"""Tables of embeddings that parallelize() places train as they would in one process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support import WHOLE
from train.ranks import run

pytestmark = pytest.mark.timeout(600)
SGD = "keras.optimizers.SGD(0.05)"
# Equal to the program for one process with dense gradients.
EXACT: dict[str, dict[str, Any]] = {
    "sgd": {},
    "gather": {"ways": "gather"},
    "dense": {"ways": "dense"},
    "adam, all rows": {"optimizer": "keras.optimizers.Adam(0.01)", "row_wise": False},
    "adagrad": {"optimizer": "keras.optimizers.Adagrad(0.05)"},
    "rmsprop has no row-wise rule": {"optimizer": "keras.optimizers.RMSprop(0.01)"},
    "shared": {"model": "shared"},
    "several": {"model": "several"},
    "two ways": {"model": "several", "ways": {"first": "owners", "second": "gather"}},
    "masks": {"model": "masks"},
    "no rows": {"data": "none"},
    "rows of one owner": {"data": "one owner"},
    "clipnorm": {"model": "several", "optimizer": "keras.optimizers.SGD(0.05, clipnorm=0.05)"},
    "global clipnorm": {
        "model": "several",
        "optimizer": "keras.optimizers.SGD(0.05, global_clipnorm=0.05)",
    },
    "accumulated": {"optimizer": "keras.optimizers.SGD(0.05, gradient_accumulation_steps=2)"},
    "decay, average": {
        "optimizer": "keras.optimizers.SGD(0.05, weight_decay=0.01, use_ema=True, ema_momentum=0.8)"
    },
    "float16": {"policy": "mixed_float16"},
}
# Equal in any number of processes; rows that a step does not use stay as they are.
LAZY: dict[str, dict[str, Any]] = {
    "adam": {"optimizer": "keras.optimizers.Adam(0.01)"},
    "adam, gathered": {"optimizer": "keras.optimizers.Adam(0.01)", "ways": "gather"},
    "adam, dense": {"optimizer": "keras.optimizers.Adam(0.01)", "ways": "dense"},
    "adamw": {"optimizer": "keras.optimizers.AdamW(0.01, weight_decay=0.1)"},
}
# Another one shows the same kinds of faults.
LONG = {"adam, all rows", "rmsprop has no row-wise rule", "shared", "masks", "clipnorm", "accumulated",
        "decay, average", "adam, gathered", "adam, dense", "adamw"}  # fmt: skip
FITS = {
    name: {"optimizer": SGD, **each}
    for name, each in (EXACT | LAZY).items()
    if WHOLE or name not in LONG
}


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The weights after one process, in whatever way: of plain programs, and of those that have no plain
    form."""
    wanted = {name: {**fit, "plain": name in EXACT} for name, fit in FITS.items()}
    for fit in wanted.values():
        fit.pop("ways", None)
    each = [fit for i, fit in enumerate(wanted.values()) if fit not in [*wanted.values()][:i]]
    (answer,) = run("tables", 1, tmp_path_factory.mktemp("one"), each=each)
    return {name: answer[each.index(fit)] for name, fit in wanted.items()}


# Two processes train all of them; what may depend on the number is trained by others, too.
SOME = ("adagrad", "two ways", "no rows", "global clipnorm", "adam")
BY_SIZE: dict[int, tuple[str, ...]] = {2: tuple(FITS), 4: (*SOME[1:], "rows of one owner")}
if WHOLE:
    BY_SIZE |= {1: SOME[:2], 4: (*SOME, "rows of one owner")}


@pytest.fixture(scope="module", params=BY_SIZE)
def trained(request: Any, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder, names = tmp_path_factory.mktemp("some"), BY_SIZE[request.param]
    answers = run("tables", request.param, folder, each=[FITS[name] for name in names])
    return [dict(zip(names, answer, strict=True)) for answer in answers]


def test_equals_one_process(trained: list[Any], expected: dict[str, Any]) -> None:
    for name in trained[0]:
        for answer in trained:
            assert answer[name] == trained[0][name], name
            for found, weights in zip(answer[name], expected[name], strict=True):
                atol = 1e-3 if name == "float16" else 1e-5
                np.testing.assert_allclose(found, weights, atol=atol, err_msg=name)


def test_each_process_has_another_number_of_rows(tmp_path: Path) -> None:
    size = 3
    # Rank r asks twice for rows 0 to r - 1, and counts them r + 1 times: the mean over three processes.
    mean = [2 * sum(rank + 1 for rank in range(row + 1, size)) / size for row in range(7)]
    for rank, answer in enumerate(run("uneven", size, tmp_path)):
        for turn, (rows, gradient, count) in enumerate(answer):
            owners = turn // 2 + 1
            assert rows == [2.0 * row for row in range(rank)] * 2
            mine = mean[rank::owners] if rank < owners else [0.0]
            assert count == len(mine)
            np.testing.assert_allclose(gradient, mine, rtol=1e-6)

# SPDX-License-Identifier: Apache-2.0
"""Computes what docs/data.md says about each data set: counts, hashes, and what is there twice.

    python bench/data_cards.py           # prints the two tables
    python bench/data_cards.py --write   # and puts them into docs/data.md

A test compares the page with what is computed.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import sklearn
from sklearn.datasets import load_breast_cancer, load_digits

import converge_data

PAGE = Path(__file__).parents[1] / "docs" / "data.md"
EXAMPLES = Path(__file__).parents[1] / "examples"
Array = np.ndarray[Any, Any]


def digest(*arrays: Array) -> str:
    """The beginning of the SHA-256 of arrays: numbers are rounded to six decimals, in little endian."""
    found = hashlib.sha256()
    for each in arrays:
        whole = np.issubdtype(each.dtype, np.integer)
        rounded = each.astype("<i8") if whole else np.round(each, 6).astype("<f8") + 0.0
        found.update(np.ascontiguousarray(rounded).tobytes())
    return found.hexdigest()[:16]


def keys(data: Array, labels: Array) -> list[bytes]:
    """What is equal for equal examples."""
    return [x.tobytes() + y.tobytes() for x, y in zip(data, labels, strict=True)]


def twice(data: Array, labels: Array) -> int:
    """How many examples are equal to an earlier one."""
    return len(data) - len(set(keys(data, labels)))


def leaked(train: tuple[Array, Array], test: tuple[Array, Array]) -> int:
    """How many examples of the test are in training, too."""
    known = set(keys(*train))
    return sum(each in known for each in keys(*test))


def sets() -> Iterator[tuple[str, Array, Array]]:
    """Name, data and labels of each data set."""
    sys.path.insert(0, str(EXAMPLES))
    import multi_worker_keras
    import parameter_server_custom_loop
    import svm

    digits, labels = load_digits(return_X_y=True)
    yield "digits", digits, labels
    data, labels = load_breast_cancer(return_X_y=True)
    yield "cancer", data, labels
    for name in ("moons", "circles", "classes", "wide"):
        each = svm.case(name)
        yield name, each.data, each.labels
    for name, kind in (("descriptions, words", converge_data.Words),):
        pieces: Any = kind()
        yield name, *pieces.examples(np.arange(len(pieces._test) + len(pieces._train)))
    yield "patterns", *multi_worker_keras.pictures(2000)
    yield "sentences", *parameter_server_custom_loop.sentences()


def splits() -> Iterator[tuple[str, str, tuple[Array, Array], tuple[Array, Array]]]:
    """Data set, program, and its parts for training and for the test."""
    sys.path.insert(0, str(EXAMPLES))
    from asynchronous_model import Network
    from rdmatensor.simulate.problem import Problem

    train: Any = import_module("demo.train")
    yield "digits", "`make demo`", *train.digits()
    for name, kind in (
        ("digits", converge_data.Digits),
        ("descriptions, words", converge_data.Words),
    ):
        held: Any = kind()
        yield (
            name,
            "`bench/bench_converge.py`",
            held.examples(held._train),
            held.examples(held._test),
        )
    problem = Problem()
    yield (
        "digits",
        "`rdmatensor simulate`",
        (problem._features, problem._classes),
        (problem._tested, problem._truth),
    )
    network = Network(0)
    yield "digits", "`bench/bench_asynchronous.py`", network.train, network.test


def counts() -> list[str]:
    """A table of what each data set has."""
    rows = ["| data set | examples | numbers each | labels | equal to an earlier one | SHA-256 |"]
    rows.append("|---|---|---|---|---|---|")
    for name, data, labels in sets():
        width = int(np.prod(data.shape[1:]))
        kinds = len(np.unique(labels))
        rows.append(
            f"| {name} | {len(data)} | {width} | {kinds} | {twice(data, labels)} | "
            f"`{digest(data, labels)}` |"
        )
    return rows


def overlaps() -> list[str]:
    """A table of what tests share with training."""
    rows = ["| data set | program | for training | for the test | of the test also in training |"]
    rows.append("|---|---|---|---|---|")
    for name, program, train, test in splits():
        rows.append(
            f"| {name} | {program} | {len(train[0])} | {len(test[0])} | {leaked(train, test)} |"
        )
    return rows


def with_tables(page: str) -> str:
    """The page with its tables computed anew. They stand between comments."""
    for name, rows in (("counts", counts()), ("overlaps", overlaps())):
        begin, end = (page.index(f"<!-- {place}{name} -->") for place in ("", "end of "))
        page = page[:begin] + f"<!-- {name} -->\n" + "\n".join(rows) + "\n" + page[end:]
    return page


def main() -> None:
    for line in [f"scikit-learn {sklearn.__version__}", *counts(), "", *overlaps()]:
        print(line)
    if "--write" in sys.argv[1:]:
        PAGE.write_text(with_tables(PAGE.read_text()))


if __name__ == "__main__":
    main()

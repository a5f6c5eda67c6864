# SPDX-License-Identifier: Apache-2.0
"""Cases of cases.py in which processes know their links, and groups take trees along them."""

from __future__ import annotations

import os
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import rdmatensor.train as rt
from rdmatensor.topology import Link, Member, Topology, agree, watch
from rdmatensor.train.backend.tensorflow import operations
from rdmatensor.train.run.subgroup import Subgroup, gather_texts

__all__ = ["trees", "trees_probed"]
SIZE = 4
WIDTH = 512


def _topology(*pairs: tuple[int, int]) -> Topology:
    both = [*pairs, *(pair[::-1] for pair in pairs)]
    links = tuple(Link(f"m{one}", f"m{other}", 1e9) for one, other in both)
    return Topology("some links", tuple(Member(f"m{i}") for i in range(SIZE)), links)


def _along_trees(run: Any) -> int:
    """Whether a large all-reduce takes trees: the group itself chooses."""
    before = run.group.info.operations["trees"]
    total = operations.all_reduce(run, tf.fill([1 << 20], run.rank + 1.0), "sum", "much")
    assert np.all(total.numpy() == run.size * (run.size + 1) / 2)
    return int(run.group.info.operations["trees"] - before)


def trees() -> Any:
    """How many operations are along trees: of all processes in a chain, of some of them, and of the weights
    of a sharded optimizer; before and after its links were found to be others."""
    chain = _topology((0, 1), (1, 2), (2, 3))
    run = rt.init(topology=chain if os.environ["RANK"] == "0" else "no such file")
    assert run.group is not None and run.device is not None
    addresses = gather_texts(run, run.device.address)
    parts = {}
    for ranks in ((0, 1, 2), (0, 2, 3)):
        if run.rank in ranks:
            parts[str(ranks)] = Subgroup(run, ranks, addresses[ranks[0]], f"some {ranks}")
            run.closing.append(parts[str(ranks)].leave)

    def count() -> Any:
        return {"all": _along_trees(run)} | {name: _along_trees(parts[name]) for name in parts}

    before = count()
    vars(watch).update(SLOWER=0.0, _FASTER=0.0)  # each look packs anew
    vars(watch)["scaled"] = lambda *_: _topology((1, 0), (0, 2), (2, 3))
    sync = rt.sync.Sharded()
    model = keras.Sequential([keras.Input((WIDTH,)), keras.layers.Dense(WIDTH)])
    model.compile(rt.distribute(keras.optimizers.SGD(0.1), sync), loss="mse")
    data = np.ones((8, WIDTH), "f"), np.ones((8, WIDTH), "f")
    model.fit(*data, epochs=1, callbacks=rt.callbacks(watch_links=True), verbose=0)
    group = sync.lanes[0].group
    assert group is not None
    return [before, count(), group.info.operations["trees"]]


def trees_probed() -> Any:
    """The links that init() measured, and how many trees it gave."""
    given, use = [], agree.use

    def counted(*arguments: Any, **options: Any) -> Any:
        given.append(len(use(*arguments, **options)))

    vars(agree)["use"] = counted
    run = rt.init(topology="probe")
    assert run.topology is not None and run.topology.connected
    return [run.topology.to_json(), given]

# SPDX-License-Identifier: Apache-2.0
"""Plan trees for TensorFlow's own collective operations, such as those of MultiWorkerMirroredStrategy."""

from __future__ import annotations

import ctypes
from pathlib import Path

from .._api.collective import tree_rows
from .._api.plugin import library
from .._ffi import ffi
from .model import Topology, load
from .pack import plan


def use_in_tensorflow(topology: Topology | str | Path | None) -> None:
    """Let TensorFlow's collective operations over grpc+rdma take the trees of a topology.

    `topology`, which may be a file or the name of a recorded one, has a member for each worker in the order
    of their indices; None takes the trees away. Call it before the first collective operation. Only the call
    at the first worker counts: the others get its trees when the group is formed. Groups of another size
    have no trees. Operations take trees where they are expected to be the fastest;
    `rdmatensor.tensorflow.stats()["collectives"]` counts them as "trees".

    Raises Unsupported, with the reason, if this process does not have the TensorFlow plugin, and what load()
    and plan() raise. Thread-safe.
    """
    function = library().rdt_tf_set_trees
    function.restype = None
    function.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p, ctypes.c_uint32]
    if topology is None:
        function(None, 0, None, 0)
        return
    if not isinstance(topology, Topology):
        topology = load(topology)
    found = plan(topology, roots=[0])
    rows, keep = tree_rows(found.trees, topology.size)
    costs = ffi.new("double[]", list(found.pair_ns))
    at, pair_ns = (int(ffi.cast("uintptr_t", each)) for each in (rows, costs))
    function(at, len(found.trees), pair_ns, topology.size)
    del keep

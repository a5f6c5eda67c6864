# SPDX-License-Identifier: Apache-2.0
"""Strategies with parameter servers, as their chief sees them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf


def strategy_of_chief(
    cluster: Mapping[str, Sequence[str]], protocol: str, partitioner: Any = None
) -> Any:
    """A strategy of this process, which is the only chief; `cluster` has the addresses by job."""
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(dict(cluster)), task_type="chief", task_id=0, rpc_layer=protocol
    )
    return tf.distribute.ParameterServerStrategy(resolver, partitioner)

# SPDX-License-Identifier: Apache-2.0
"""Synchronizers: when processes that train one model exchange what, and with whom.

See docs/synchronizers.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..._api.lazy import attach

if TYPE_CHECKING:
    from ..sharding.optimizer import Sharded
    from .all_reduce import AllReduce
    from .base import Gradients, Parameters
    from .compression import PowerSGD, Quantized, TopK
    from .decoupled import Decoupled
    from .diloco import DiLoCo
    from .easgd import EASGD
    from .gossip import SGP, PullGossip, PushGossip
    from .gossip_pga import GossipPGA
    from .hierarchical import Hierarchical
    from .local_sgd import LocalSGD
    from .periods import QSR, Quality
    from .ssp import SSP

__all__ = [
    "EASGD",
    "QSR",
    "SGP",
    "SSP",
    "AllReduce",
    "Decoupled",
    "DiLoCo",
    "GossipPGA",
    "Gradients",
    "Hierarchical",
    "LocalSGD",
    "Parameters",
    "PowerSGD",
    "PullGossip",
    "PushGossip",
    "Quality",
    "Quantized",
    "Sharded",
    "TopK",
]

_HOMES = {
    ".sharding.optimizer": "Sharded",
    "all_reduce": "AllReduce",
    "base": "Gradients Parameters",
    "compression": "PowerSGD Quantized TopK",
    "decoupled": "Decoupled",
    "diloco": "DiLoCo",
    "easgd": "EASGD",
    "gossip": "PullGossip PushGossip SGP",
    "gossip_pga": "GossipPGA",
    "hierarchical": "Hierarchical",
    "local_sgd": "LocalSGD",
    "periods": "QSR Quality",
    "ssp": "SSP",
}
if not TYPE_CHECKING:
    __getattr__ = attach(__name__, _HOMES)

# SPDX-License-Identifier: Apache-2.0
"""Peers with CUDA devices: tests/support/cuda_driver.c is their driver, and no other process finds it."""

from __future__ import annotations

import pytest

from support import cuda_tensors
from support.peers import Peer

SETUP = """
    from support import cuda_tensors as cuda
    cuda.load(driver)
    cuda.delay(3000)
    numbers = np.arange(300_000, dtype="float32").reshape(3, -1) + 1
    KINDS = [cuda.DLPackTensor, cuda.InterfaceTensor]
"""
# For tests of what NVIDIA's driver does on nobody's demand.
needs_stand_in = pytest.mark.skipif(
    cuda_tensors.ON_GPU,
    reason="it needs errors, delays or counts of the stand-in for CUDA's driver",
)
# A peer that may use it, and how it connects.
BOTH = {"RDMATENSOR_TRANSPORTS": "shm,tcp"}
REACH = """
    remote = device.connect(to, transports=[over])
    region = remote.region("on gpu")
"""


def with_driver(peer: Peer, driver: str, setup: str = SETUP) -> Peer:
    """Give a peer the driver, a module to use it, and `numbers`."""
    peer.run(setup, driver=driver)
    return peer

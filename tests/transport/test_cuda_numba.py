# SPDX-License-Identifier: Apache-2.0
"""Numba as another user of the same CUDA memory. It takes the stand-in for the driver; kernels need a GPU."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec

import pytest

from support import cuda_tensors
from support.peers import Peer
from transport.gpus import BOTH, REACH, with_driver

Spawn = Callable[..., Peer]

pytestmark = [
    pytest.mark.any_transport,
    pytest.mark.skipif(find_spec("numba") is None, reason="numba is not installed"),
    # Numba loads what its variable names, and the core what is called libcuda.so.1: both are the same file.
    pytest.mark.skipif(
        cuda_tensors.ON_GPU, reason="test_libraries has arrays of other libraries on a GPU"
    ),
]


@pytest.mark.parametrize("over", ["shm", "tcp"])
def test_numba(spawn: Spawn, cuda_driver: str, over: str) -> None:
    environment = {**BOTH, "NUMBA_CUDA_DRIVER": cuda_driver}
    owner, peer = (with_driver(spawn(environment), cuda_driver) for _ in range(2))
    for each in (owner, peer):
        each.run(
            """
            from numba import cuda as numba_cuda
            stream = numba_cuda.stream()
            def host(array):
                values = array.copy_to_host()
                stream.synchronize()  # else it comes late
                return values
            """
        )
    owner.run(
        """
        given = numba_cuda.to_device(numbers, stream=stream)  # the copy comes late
        registered = device.register(given, name="on gpu")
        allocated = device.allocate(numbers.shape, "float32", name="allocated", memory="cuda:0")
        """
    )
    peer.run(REACH, to=owner.address, over=over)
    peer.run(
        """
        into = numba_cuda.device_array(numbers.shape, "float32", stream=stream)
        region.read_into(into).wait()
        assert (host(into) == numbers).all()
        doubled = 2 * numbers  # kept: its copy comes late, too
        mine = numba_cuda.to_device(doubled, stream=stream)
        region.write(mine).wait()
        remote.region("allocated").write(mine, notify=1).wait()
        """
    )
    owner.run(
        """
        assert device.next_notification(60).immediate == 1
        assert (host(given) == 2 * numbers).all()
        assert (host(numba_cuda.as_cuda_array(allocated)) == 2 * numbers).all()
        """
    )

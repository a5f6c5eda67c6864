# SPDX-License-Identifier: Apache-2.0
"""The Python API under pytest-benchmark, which compares two versions of the sources on one machine:

    pytest bench/test_micro.py --benchmark-save=before
    pytest bench/test_micro.py --benchmark-compare=0001 --benchmark-compare-fail=median:10%

`rdmatensor bench` measures the same operations in turns with memcpy. Quote its figures.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import rdmatensor
from rdmatensor.bench.cluster import peer_here
from rdmatensor.bench.peer import REGION

pytest.importorskip("pytest_benchmark")

KB, MB = 1 << 10, 1 << 20
SIZES = (8, 4 * KB, 64 * KB, MB, 16 * MB)
PATIENCE_S = 30.0


@pytest.fixture(scope="module")
def device() -> Iterator[rdmatensor.Device]:
    with rdmatensor.Device(name="bench") as device:
        yield device


@pytest.fixture(scope="module")
def remote(device: rdmatensor.Device) -> Iterator[rdmatensor.RemoteDevice]:
    with peer_here(max(SIZES)) as address:
        yield device.connect(address)


@pytest.fixture(scope="module")
def region(remote: rdmatensor.RemoteDevice) -> rdmatensor.RemoteRegion:
    return remote.region(REGION)


@pytest.fixture(scope="module")
def memory(device: rdmatensor.Device) -> Any:
    array = device.allocate(max(SIZES)).array
    array[:] = np.arange(len(array), dtype=np.uint8)
    return array


@pytest.mark.parametrize("nbytes", SIZES)
def test_write(benchmark: Any, region: rdmatensor.RemoteRegion, memory: Any, nbytes: int) -> None:
    data = memory[:nbytes]
    benchmark(lambda: region.write(data).wait())
    assert (region.read(0, nbytes) == data).all()


@pytest.mark.parametrize("nbytes", SIZES)
def test_read(benchmark: Any, region: rdmatensor.RemoteRegion, memory: Any, nbytes: int) -> None:
    region.write(memory[:nbytes]).wait()
    target = np.zeros(nbytes, np.uint8)
    benchmark(lambda: region.read_into(target).wait())
    assert (target == memory[:nbytes]).all()


@pytest.mark.parametrize("nbytes", SIZES)
def test_write_and_notify(
    benchmark: Any,
    device: rdmatensor.Device,
    region: rdmatensor.RemoteRegion,
    memory: Any,
    nbytes: int,
) -> None:
    """The time includes the answer to the notification."""
    data = memory[:nbytes]

    def turn() -> int:
        region.write(data, notify=7).wait()
        return device.next_notification(PATIENCE_S).immediate

    assert benchmark(turn) == 7


def test_batch(
    benchmark: Any, remote: rdmatensor.RemoteDevice, region: rdmatensor.RemoteRegion, memory: Any
) -> None:
    """A batch of 64 writes of 8 bytes."""
    batch = remote.batch()
    for number in range(64):
        batch.write(region, memory[8 * number : 8 * number + 8], offset=8 * number)
    benchmark(lambda: remote.post(batch).wait())


@pytest.mark.parametrize("nbytes", SIZES)
def test_memcpy(benchmark: Any, memory: Any, nbytes: int) -> None:
    """memcpy is the upper limit."""
    target = np.zeros(nbytes, np.uint8)
    benchmark(lambda: np.copyto(target, memory[:nbytes]))

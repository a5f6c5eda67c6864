# SPDX-License-Identifier: Apache-2.0
"""Tensors of other libraries as the local memory of operations, and regions as theirs, by DLPack."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

import rdmatensor
from rdmatensor._api import dlpack

# The bytes are those of arrays, which all transports move.
pytestmark = pytest.mark.any_transport
DTYPES = ["bool", "int8", "uint16", "int64", "float16", "float32", "complex64", "complex128"]
ML_DTYPES = [ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2]
EVERY_DTYPE = [*map(np.dtype, DTYPES), *map(np.dtype, ML_DTYPES)]


class Tensor:
    """What a library without numpy offers: its memory by DLPack only."""

    def __init__(self, array: npt.NDArray[Any], device: int = 1) -> None:
        self.array, self.device = array, device

    def __dlpack__(self, **options: Any) -> Any:
        return dlpack.capsule_of(self.array, **options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device, 0


class OldTensor(Tensor):
    """Of DLPack 0, whose capsules do not tell whether the memory may be written."""

    def __dlpack__(self, **options: Any) -> Any:
        if options:
            raise TypeError("this library knows no options")
        return dlpack.capsule_of(self.array)


@pytest.fixture
def other(device: rdmatensor.Device) -> Iterator[tuple[rdmatensor.Device, rdmatensor.RemoteDevice]]:
    with rdmatensor.Device() as other:
        yield other, device.connect(other.address)


def some(dtype: np.dtype[Any], shape: tuple[int, ...] = (3, 5)) -> npt.NDArray[Any]:
    return (np.arange(np.prod(shape)) % 7).reshape(shape).astype(dtype)


@pytest.mark.parametrize("dtype", EVERY_DTYPE, ids=str)
def test_every_dtype_both_ways(other: Any, dtype: np.dtype[Any]) -> None:
    owner, remote = other
    values = some(dtype)
    with owner.allocate(values.shape, dtype, name=f"of {dtype}") as region:
        opened = remote.region(region.name)
        opened.write(Tensor(values)).wait()
        assert region.array.tobytes() == values.tobytes()
        into = np.zeros_like(values)
        opened.read_into(Tensor(into)).wait()
        assert into.tobytes() == values.tobytes()
        seen = dlpack.array_of(region)
        assert seen.dtype == dtype and seen.shape == values.shape
        assert np.shares_memory(seen.view(np.uint8), region.array.view(np.uint8))


def test_numpy_takes_a_region(other: Any) -> None:
    owner, _ = other
    with owner.allocate((2, 3), "int32") as region:
        np.from_dlpack(region)[1, 2] = 5
        assert region.array[1, 2] == 5


def test_notifications_batches_and_registered_tensors(other: Any) -> None:
    owner, remote = other
    memory = rdmatensor.empty(8, "float32")
    with owner.register(Tensor(memory), name="registered") as region:
        assert region.array.dtype == np.float32 and np.shares_memory(region.array, memory)
        opened = remote.region("registered")
        batch = remote.batch().write(opened, Tensor(some(np.dtype("float32"), (8,))))
        remote.post(batch.notify(Tensor(np.arange(3, dtype=np.uint8)), 4)).wait()
        notification = owner.next_notification(timeout=20)
    assert (notification.payload, notification.immediate) == (bytes(range(3)), 4)
    assert memory.tolist() == [0, 1, 2, 3, 4, 5, 6, 0]


def test_a_tensor_lives_as_long_as_its_region(device: rdmatensor.Device) -> None:
    memory = rdmatensor.empty(8)
    gone = weakref.ref(memory.base.obj if isinstance(memory.base, memoryview) else memory)
    region = device.register(Tensor(memory))
    del memory
    gc.collect()
    region.array[:] = 3
    assert bytes(region.array) == b"\3" * 8
    region.close()
    del region
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize("dtype", ["float32", "int64", ml_dtypes.bfloat16], ids=str)
def test_groups(device: rdmatensor.Device, dtype: npt.DTypeLike) -> None:
    values, into = some(np.dtype(dtype)), np.zeros((3, 5), dtype)
    tensor, out = Tensor(values), Tensor(into)
    with rdmatensor.Group(device, 0, 1) as group:
        assert group.all_reduce(tensor, out) is out
        assert group.all_gather(tensor, out) is out
        assert (into == values).all()
        assert group.start("reduce_scatter", tensor, out).result(20) is out
        assert group.all_reduce(tensor, tensor, op="max") is tensor
        assert group.broadcast(tensor) is tensor
        assert (group.all_to_all(tensor) == values).all()


def test_stores(device: rdmatensor.Device, other: Any) -> None:
    owner, _ = other
    values, into = np.arange(8.0), np.zeros(8)
    sizes = (2, values.nbytes, values.nbytes)
    with rdmatensor.Store(device, 0, *sizes) as ours, rdmatensor.Store(owner, 1, *sizes) as theirs:
        ours.connect(1, owner.address)
        theirs.publish(Tensor(values))
        ours.pull(1, Tensor(into))
        assert (into == values).all()
        assert ours.push(1, Tensor(values))
        arrival = theirs.take(timeout=20)
        assert arrival is not None
        with arrival:
            assert bytes(arrival.data) == values.tobytes()


def refusals(call: Any, data: Any, text: str) -> None:
    with pytest.raises(rdmatensor.UsageError, match=text):
        call(data)


def test_what_is_refused(device: rdmatensor.Device, other: Any) -> None:
    owner, remote = other
    fixed = np.zeros(8)
    fixed.flags.writeable = False
    with owner.allocate(64, name="refused"):
        opened = remote.region("refused")
        for call in (opened.write, opened.read_into, device.register, remote.notify):
            refusals(call, Tensor(np.zeros((8193, 4))[:, 1]), "not C-contiguous")
        for call in (opened.write, opened.read_into):
            refusals(call, Tensor(np.zeros(8), device=8), "kind OTHER: copy it to the host")
        refusals(opened.write, Tensor(np.zeros(8, "datetime64[s]")), "does not share its memory")
        for tensor in (Tensor(fixed), OldTensor(np.zeros(8))):
            refusals(opened.read_into, tensor, "read-only")
            refusals(device.register, tensor, "read-only")
            opened.write(tensor).wait()
        opened.write(Tensor(np.zeros((0, 3)))).wait()

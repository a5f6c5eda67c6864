# SPDX-License-Identifier: Apache-2.0
"""Small strided arrays and tensors as the local memory of operations, and what is refused."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

import rdmatensor
from rdmatensor import Group, RemoteDevice, RemoteRegion
from transport.teams import Team
from transport.test_dlpack import Tensor

pytestmark = pytest.mark.any_transport

Array = npt.NDArray[Any]
Shown = Callable[[Array], Any]
MOST = 64 << 10

# Each takes 6 elements, in the order of `array.ravel()`, and none beside them.
LAYOUTS: dict[str, Callable[[Array], Array]] = {
    "every second": lambda whole: whole[2:14:2],
    "backwards": lambda whole: whole[9:3:-1],
    "transposed": lambda whole: whole[:6].reshape(2, 3).T,
    "a column": lambda whole: whole[:18].reshape(6, 3)[:, 1:2],
    "a box": lambda whole: whole.reshape(3, 8)[:, 1:5:3],
}
SHOWN: dict[str, Shown] = {"array": lambda array: array, "tensor": Tensor}


@pytest.fixture
def region(peer: Any, remote: RemoteDevice) -> RemoteRegion:
    peer.run("region = device.allocate(6, 'float32', name='region')")
    return remote.region("region")


def copies(of: RemoteDevice) -> int:
    return of._device.stats().copies


@pytest.mark.parametrize("shown", SHOWN.values(), ids=SHOWN)
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_write_and_read(
    peer: Any, remote: RemoteDevice, region: RemoteRegion, layout: Any, shown: Shown
) -> None:
    array = layout(np.arange(24, dtype="float32"))
    assert not array.flags.c_contiguous and array.size == 6
    region.write(shown(array)).wait()
    assert peer.get("region.array.tolist()") == array.ravel().tolist()
    assert copies(remote) == 24
    peer.run("region.array[:] = np.arange(6) + 100")
    whole = np.full(24, 7, "float32")
    into = layout(whole)
    transfer = region.read_into(shown(into))
    transfer.wait()
    assert into.ravel().tolist() == [100, 101, 102, 103, 104, 105]
    into[...] = 7
    assert (whole == 7).all(), "what lies between is untouched"
    into[...] = 8
    assert transfer.done()
    assert (into == 8).all(), "they are copied back once"
    assert copies(remote) == 48


def test_reads_that_are_awaited_and_that_fail(remote: RemoteDevice, region: RemoteRegion) -> None:
    region.write(np.arange(6, dtype="float32")).wait()
    rows = np.zeros((5, 6, 2), "float32")

    async def read_all() -> None:
        transfers = [region.read_into(row[:, 0]) for row in rows]
        for each in transfers:
            await each

    asyncio.run(read_all())
    assert (rows[..., 0] == np.arange(6)).all() and not rows[..., 1].any()
    with pytest.raises(rdmatensor.RegionError):
        region.read_into(rows[0, :, 1], 4)
    region.read_into(rows[0, :0, 1]).wait()
    assert not rows[..., 1].any()


def test_notifications(peer: Any, remote: RemoteDevice) -> None:
    payload = np.arange(40, dtype="uint8")
    for shown in SHOWN.values():
        remote.notify(shown(payload[::4]), 3).wait()
        peer.run("note = device.next_notification(20)")
        assert peer.get("(note.immediate, list(note.payload))") == (3, list(range(0, 40, 4)))
    assert copies(remote) == 20


@pytest.mark.parametrize("dtype", ["bool", "int16", "complex128", "M8[s]", ml_dtypes.bfloat16])
def test_every_dtype(peer: Any, remote: RemoteDevice, dtype: Any) -> None:
    array = np.arange(16).astype(dtype)
    peer.run("region = device.allocate(1024, name='any')")
    opened = remote.region("any")
    opened.write(array[::2]).wait()
    into = np.zeros(16, dtype)
    opened.read_into(into[1::2]).wait()
    assert into[1::2].tobytes() == array[::2].tobytes()
    assert into[::2].tobytes() == np.zeros(8, dtype).tobytes()


def test_stores(device: rdmatensor.Device) -> None:
    values, sizes = np.arange(12.0).reshape(4, 3), (2, 32, 32)
    with (
        rdmatensor.Device() as other,
        rdmatensor.Store(device, 0, *sizes) as ours,
        rdmatensor.Store(other, 1, *sizes) as theirs,
    ):
        ours.connect(1, other.address)
        for shown in SHOWN.values():
            theirs.publish(shown(values[:, 1]))
            into = np.zeros((4, 2))
            ours.pull(1, shown(into[:, 0]))
            assert into.tolist() == [[each, 0] for each in values[:, 1]]
            assert ours.push(1, shown(values[:, 2]))
            arrival = theirs.take(timeout=20)
            assert arrival is not None
            with arrival:
                assert bytes(arrival.data) == values[:, 2].tobytes()
        assert (device.stats().copies, other.stats().copies) == (2 * 64, 2 * 32)


# What two members run, with arrays by `at(values)`, in which every second element belongs to the array.
PROGRAM = """
    from transport.test_strided import Tensor
    def at(values, dtype='float32'):
        whole = np.full((len(values), 2), 50).astype(dtype)
        whole[:, 0] = np.asarray(values).astype(dtype)
        return whole[:, 0]
    def untouched(*arrays):
        return all((each.base[:, 1] == each.base.dtype.type(50)).all() for each in arrays)
    mine, into, four = at([1, 2, 3, 4]), at([0] * 4), at([0] * 8)
    results = []
    def note(array):
        results.append(np.asarray(array).astype('float64').tolist())
"""
OPERATIONS = """
    assert group.all_reduce(show(mine), shown_into := show(into)) is shown_into; note(into)
    assert group.all_gather(show(mine), show(four)) is not None; note(four)
    note(group.reduce_scatter(show(mine)))
    group.all_to_all(show(mine), show(into)); note(into)
    group.broadcast(show(mine), 1); note(mine)
    mine[:] = [4, 3, 2, 1]
    started = group.start('all_reduce', show(mine), show(into), op='max')
    started.wait(20); note(into)
    started = group.start('all_reduce', show(mine), show(mine))
    assert started.result(20) is not None; note(mine)
    moved, landed = at([5 + group.rank] * 2, 'M8[s]'), at([0] * 4, 'M8[s]')
    group.all_gather(moved, landed)
    note(landed.astype('int64'))
    mine[:] = np.arange(4) + 10 * group.rank
    group.gather(show(mine), 1, show(four) if group.rank == 1 else None); note(four)
    group.scatter(show(mine), 0, show(pieces := at([7, 7]))); note(pieces)
    group.reduce(show(mine), 1, show(into) if group.rank == 1 else None); note(into)
    if group.rank == 0:
        group.send(show(mine), 1)
        group.start('send', show(into), root=1).wait(20)
    else:
        group.receive(show(into), 0); note(into)
        receipt = group.start('receive', shown_into := show(into), root=0)
        assert receipt.result(20) is shown_into; note(into)
    assert untouched(mine, into, four, pieces) and (landed.base[:, 1] == np.datetime64(50, 's')).all()
"""


@pytest.mark.parametrize("show", ["np.asarray", "Tensor"])
def test_groups(pair: Team, show: str) -> None:
    pair.run(PROGRAM + f"    show = {show}\n    before = group.info.copies\n")
    pair.run("mine += 10 * group.rank")
    pair.run(OPERATIONS)
    first, second = pair.get("results")
    assert first[0] == second[0] == [12, 14, 16, 18]
    assert first[1] == second[1] == [1, 2, 3, 4, 11, 12, 13, 14]
    assert first[2] + second[2] == [12, 14, 16, 18]
    assert (first[3], second[3]) == ([1, 2, 11, 12], [3, 4, 13, 14])
    assert first[4] == second[4] == [11, 12, 13, 14]
    assert first[5] == second[5] == [4, 3, 2, 1]
    assert first[6] == second[6] == [8, 6, 4, 2]
    assert first[7] == second[7] == [5, 5, 6, 6]
    assert (first[8], second[8]) == ([1, 2, 3, 4, 11, 12, 13, 14], [0, 1, 2, 3, 10, 11, 12, 13])
    assert (first[9], second[9]) == ([0, 1], [2, 3])
    assert (first[10], second[10]) == ([4, 3, 2, 1], [10, 12, 14, 16])
    assert second[11:] == [[0, 1, 2, 3], [4, 3, 2, 1]]
    # At least 14 arrays of 16 bytes, and what the group stages itself.
    assert all(each >= 14 * 16 for each in pair.get("group.info.copies - before"))


@pytest.mark.parametrize("shown", SHOWN.values(), ids=SHOWN)
def test_the_limit(peer: Any, remote: RemoteDevice, alone: Group, shown: Shown) -> None:
    peer.run("region = device.allocate(1 << 20, name='large')")
    region, device = remote.region("large"), remote._device
    elements = MOST // 8
    fits, large = np.ones((elements, 2))[:, 0], np.ones((elements + 1, 2))[:, 0]
    region.write(shown(fits)).wait()
    region.read_into(shown(fits)).wait()
    alone.all_reduce(shown(fits), shown(fits))
    assert alone.info.copies >= MOST
    assert device.stats().copies == 2 * MOST
    calls: list[Callable[[Any], Any]] = [
        region.write,
        region.read_into,
        remote.notify,
        alone.all_reduce,
        lambda array: alone.start("all_reduce", fits, array),
        alone.broadcast,
    ]
    with rdmatensor.Store(device, 0, 1, large.nbytes, name="large") as store:
        for call in [*calls, store.publish]:
            with pytest.raises(rdmatensor.UsageError, match=r"not C-contiguous|elements"):
                call(shown(large))
    assert device.stats().copies == 2 * MOST, "what is refused is not copied"


def test_what_is_refused(remote: RemoteDevice, region: RemoteRegion, alone: Group) -> None:
    fixed = np.zeros((6, 2), "float32")
    fixed.flags.writeable = False
    windows = np.lib.stride_tricks.as_strided(np.zeros(8, "float32"), (3, 2), (4, 4))
    same = np.lib.stride_tricks.as_strided(np.zeros(1, "float32"), (6,), (0,))
    objects = np.array([[None, None]] * 3)[:, 0]
    for target in (fixed[:, 0], windows, same, objects, memoryview(bytearray(12))[::2]):
        with pytest.raises(rdmatensor.UsageError):
            region.read_into(target)
    for array in (fixed[:, 0], windows, same):
        region.write(array).wait()
        with pytest.raises(rdmatensor.UsageError):
            alone.broadcast(array)
    column = np.zeros((6, 2), "float32")[:, 0]
    for call in (
        remote._device.register,
        lambda array: remote.batch().write(region, array),
        lambda array: remote.batch().read_into(region, array),
    ):
        with pytest.raises(rdmatensor.UsageError, match="ascontiguousarray"):
            call(column)

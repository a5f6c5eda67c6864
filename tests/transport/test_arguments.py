# SPDX-License-Identifier: Apache-2.0
"""Bad arguments of every public function: UsageError or TypeError at once, and never C's idea of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import rdmatensor
from rdmatensor import Access, config
from support.waits import AT_ONCE

# What is refused reaches no transport.
pytestmark = pytest.mark.any_transport
# What a caller expects of a wrong argument. A number that is too large may also be out of the region's range.
WRONG = (rdmatensor.UsageError, TypeError)
NO_TEXT = [b"bytes", 1, 2.7, None, "a\0b", "\ud800", ["a"], np.str_("a\0b")]
NO_NUMBER = [True, 2.7, np.float32(2.7), "1", b"1", None, -1, 2**64, [1], (1, 2), np.array([1, 2])]
NO_SHAPE = [
    2.7,
    (2.7,),
    (np.float32(2),),
    -1,
    (2, -1),
    2**63,
    (2**32, 2**32),
    "12",
    True,
    None,
    (True,),
]
OBJECTS: Any = np.array([None])  # memory that holds references
NO_BYTES = [
    "text",
    1,
    None,
    [1, 2],
    np.zeros((8193, 4))[:, 1],
    np.array([None, "a"]),
    memoryview(OBJECTS),
    memoryview(bytes(8))[::2],
]
NO_TIMEOUT = ["1", b"1", -1, float("nan"), True, [1], np.array([1, 2])]
NO_ACCESS = ["READ", 4, -1, 2.7, True, None, [1]]

Case = tuple[Callable[[Any], Any], list[Any]]


@pytest.fixture
def remote(device: rdmatensor.Device) -> Iterator[rdmatensor.RemoteDevice]:
    """Another device of this process: nothing here reaches it."""
    with rdmatensor.Device() as other, other.allocate(64, name="region"):
        yield device.connect(other.address)


def some(values: list[Any], *unless: Any) -> list[Any]:
    return [each for each in values if not any(each is one for one in unless)]


def expect_refusals(cases: dict[str, Case]) -> None:
    for name, (call, values) in cases.items():
        for value in values:
            begin = time.monotonic()
            try:
                result = call(value)
            except WRONG as error:
                assert "rdt_" not in str(error) and "RDT_" not in str(error), (name, value)
            except Exception as error:
                raise AssertionError(f"{name} with {value!r}: {error!r}") from error
            else:
                raise AssertionError(f"{name} takes {value!r}: {result!r}")
            assert time.monotonic() - begin < AT_ONCE, (name, value)


def test_devices(device: rdmatensor.Device) -> None:
    address = device.address
    array = np.zeros(8)
    expect_refusals(
        {
            "name": (
                lambda v: rdmatensor.Device(name=v),
                [*some(NO_TEXT, None), "a\nb", "n" * 300],
            ),
            "bind": (lambda v: rdmatensor.Device(bind=v), some(NO_TEXT, None)),
            "port": (lambda v: rdmatensor.Device(port=v), [*NO_NUMBER, 65536]),
            "allocate": (device.allocate, NO_SHAPE),
            "allocate dtype": (lambda v: device.allocate(8, v), ["nothing", object, "O", 5]),
            "allocate name": (
                lambda v: device.allocate(8, name=v),
                [*some(NO_TEXT, None), "n" * 64],
            ),
            "allocate access": (lambda v: device.allocate(8, access=v), NO_ACCESS),
            "register": (device.register, [*NO_BYTES, b"read-only", b""]),
            "register to read": (lambda v: device.register(v, Access.READ), NO_BYTES),
            "register access": (lambda v: device.register(array, v), NO_ACCESS),
            "register name": (lambda v: device.register(array, name=v), some(NO_TEXT, None)),
            "connect": (device.connect, [*NO_TEXT, "", "nowhere", "127.0.0.1:"]),
            "connect timeout": (lambda v: device.connect(address, v), NO_TIMEOUT),
            "transports": (
                lambda v: device.connect(address, transports=v),
                ["tcp", ["smh"], ["tcp", "smh"], [1], 5, ["t\0cp"], [b"tcp"]],
            ),
            "next_notification": (device.next_notification, NO_TIMEOUT),
            "empty": (rdmatensor.empty, NO_SHAPE),
            "empty dtype": (lambda v: rdmatensor.empty(8, v), ["nothing", object]),
            "crc32c": (rdmatensor.crc32c, NO_BYTES),
            "crc32c value": (lambda v: rdmatensor.crc32c(b"a", v), [*NO_NUMBER, 2**32]),
        }
    )
    with pytest.raises(rdmatensor.UsageError, match="shm,verbs,tcp") as caught:
        device.connect(address, transports=["smh"])
    assert str(caught.value).count("smh") == 2, "the argument, and which of its names"


def test_peers_and_their_regions(remote: rdmatensor.RemoteDevice) -> None:
    region, into = remote.region("region"), bytearray(8)
    frozen = np.zeros(8)
    frozen.flags.writeable = False
    batch = remote.batch()
    expect_refusals(
        {
            "region": (remote.region, [*some(NO_TEXT, 1), -1, 2**64, True, "", "n" * 64]),
            "region timeout": (lambda v: remote.region("region", v), NO_TIMEOUT),
            "allocate": (remote.allocate, NO_SHAPE),
            "allocate dtype": (lambda v: remote.allocate(8, v), ["nothing", object]),
            "allocate access": (lambda v: remote.allocate(8, access=v), NO_ACCESS),
            "allocate timeout": (lambda v: remote.allocate(8, timeout=v), NO_TIMEOUT),
            "notify": (remote.notify, NO_BYTES),
            "immediate": (lambda v: remote.notify(b"", v), NO_NUMBER),
            "post": (remote.post, [None, 1, [batch]]),
            "write": (region.write, NO_BYTES),
            "write offset": (lambda v: region.write(b"1", v), NO_NUMBER),
            "write notify": (lambda v: region.write(b"1", 0, v), some(NO_NUMBER, None)),
            "read_into": (region.read_into, [*NO_BYTES, b"bytes", frozen]),
            "read_into offset": (lambda v: region.read_into(into, v), NO_NUMBER),
            "read": (region.read, NO_NUMBER),
            "read nbytes": (lambda v: region.read(0, v), some(NO_NUMBER, None)),
            "read timeout": (lambda v: region.read(0, 8, v), NO_TIMEOUT),
            "fetch_add": (lambda v: region.fetch_add(v, 1), NO_NUMBER),
            "fetch_add value": (lambda v: region.fetch_add(0, v), some(NO_NUMBER, -1)),
            "fetch_add timeout": (lambda v: region.fetch_add(0, 1, v), NO_TIMEOUT),
            "compare_swap": (lambda v: region.compare_swap(v, 0, 1), NO_NUMBER),
            "compare_swap expected": (lambda v: region.compare_swap(0, v, 1), some(NO_NUMBER, -1)),
            "compare_swap desired": (lambda v: region.compare_swap(0, 1, v), some(NO_NUMBER, -1)),
            "map": (region.map, NO_NUMBER),
            "map nbytes": (lambda v: region.map(0, v), some(NO_NUMBER, None)),
            "map dtype": (lambda v: region.map(0, 9, v), ["nothing", "f4", object]),
            "batch write": (lambda v: batch.write(region, v), NO_BYTES),
            "batch region": (lambda v: batch.write(v, b"1"), [None, "region", 1]),
            "batch offset": (lambda v: batch.write(region, b"1", v), NO_NUMBER),
            "batch notify": (lambda v: batch.write(region, b"1", 0, v), some(NO_NUMBER, None)),
            "batch read": (lambda v: batch.read_into(region, v), [*NO_BYTES, frozen]),
            "batch immediate": (lambda v: batch.notify(b"", v), NO_NUMBER),
            "wait": (remote.notify(b"").wait, NO_TIMEOUT),
        }
    )
    assert len(batch) == 0
    for offset, nbytes in ((0, 65), (65, 0), (64, 1), (2**63, 2**63), (0, 2**62)):
        with pytest.raises(rdmatensor.RegionError) as caught:
            region.read(offset, nbytes)
        assert caught.value.status == "RANGE"
    numpy: Any = np  # whose integers are no int to type checkers
    region.write(b"12345678", numpy.int64(8), numpy.uint8(5)).wait()
    assert bytes(region.read(numpy.int32(8), numpy.int8(8))) == b"12345678"


def test_groups(alone: rdmatensor.Group, device: rdmatensor.Device) -> None:
    array = np.ones(4, "f4")
    join = rdmatensor.Group
    expect_refusals(
        {
            "rank": (lambda v: join(device, v, 2, device.address, timeout=0.1), [*NO_NUMBER, 2]),
            "size": (lambda v: join(device, 0, v, device.address, timeout=0.1), [*NO_NUMBER, 0]),
            "root": (lambda v: join(device, 1, 2, v, timeout=0.1), some(NO_TEXT, None)),
            "name": (lambda v: join(device, 0, 1, name=v), [*NO_TEXT, "n" * 64]),
            "timeout": (lambda v: join(device, 0, 1, name="g", timeout=v), NO_TIMEOUT),
            "array": (alone.all_reduce, [*NO_BYTES, np.zeros(4, "M8[s]")]),
            "op": (lambda v: alone.all_reduce(array, op=v), ["max\0", None, 1, [], b"sum"]),
            "algorithm": (lambda v: alone.all_reduce(array, algorithm=v), ["rung", None, 1, []]),
            "broadcast root": (lambda v: alone.broadcast(array, v), [*some(NO_NUMBER, True), 1]),
            "tag": (lambda v: alone.all_reduce(array, tag=v), [*some(NO_NUMBER, None), 2**63]),
            "detail": (lambda v: alone.all_reduce(array, detail=v), some(NO_TEXT, None)),
            "op timeout": (lambda v: alone.barrier(v), NO_TIMEOUT),
            "start": (lambda v: alone.start(v, array), ["fold", None, 1]),
            "start detail": (
                lambda v: alone.start("all_reduce", array, detail=v),
                some(NO_TEXT, None),
            ),
            "cancel": (alone.cancel, some(NO_NUMBER, None)),
            "empty": (alone.empty, NO_SHAPE),
            "choose": (lambda v: alone.choose("all_reduce", v), NO_NUMBER),
        }
    )


def test_stores(device: rdmatensor.Device) -> None:
    address = device.address
    make = rdmatensor.Store
    with make(device, 0, 2, 64, 64) as store:
        expect_refusals(
            {
                "rank": (lambda v: make(device, v, 2, 64, name="s"), [*NO_NUMBER, 2]),
                "size": (lambda v: make(device, 0, v, 64, name="s"), [*NO_NUMBER, 0]),
                "nbytes": (lambda v: make(device, 0, 2, v, name="s"), NO_NUMBER),
                "slots": (lambda v: make(device, 0, 2, 64, v, name="s"), NO_NUMBER),
                "name": (lambda v: make(device, 0, 2, 64, name=v), [*NO_TEXT, "", "n" * 48]),
                "buffers": (lambda v: make(device, 0, 2, 64, name="s", buffers=v), [*NO_NUMBER, 1]),
                "connect": (lambda v: store.connect(v, address), [*NO_NUMBER, 0, 2]),
                "address": (lambda v: store.connect(1, v), NO_TEXT),
                "connect timeout": (lambda v: store.connect(1, address, v), NO_TIMEOUT),
                "member": (store.member, [*NO_NUMBER, 0, 2]),
                "publish": (store.publish, [*NO_BYTES, bytes(63)]),
                "mark": (lambda v: store.publish(bytes(64), v), NO_NUMBER),
                "pull": (lambda v: store.pull(v, bytearray(8)), [*NO_NUMBER, 0, 2]),
                "pull into": (lambda v: store.pull(1, v), [*NO_BYTES, b"bytes"]),
                "pull offset": (lambda v: store.pull(1, bytearray(8), v), NO_NUMBER),
                "push": (lambda v: store.push(v, b"1"), [*NO_NUMBER, 0, 2]),
                "push data": (lambda v: store.push(1, v), NO_BYTES),
                "push mark": (lambda v: store.push(1, b"1", v), NO_NUMBER),
                "take": (store.take, NO_TIMEOUT),
                "set_clock": (store.set_clock, NO_NUMBER),
                "wait_clocks": (store.wait_clocks, NO_NUMBER),
            }
        )


def test_settings() -> None:
    before = config.get("DEADLINE_MS")
    expect_refusals(
        {
            "get": (config.get, [*NO_TEXT, "", "NOTHING"]),
            "get_int": (config.get_int, [*NO_TEXT, "", "NOTHING"]),
            "set": (lambda v: config.set(v, "1"), [*NO_TEXT, "", "NOTHING"]),
            "value": (
                lambda v: config.set("DEADLINE_MS", v),
                ["", "-1", "1\0", -1, 2**70, 2.5, None, True],
            ),
        }
    )
    assert config.get("DEADLINE_MS") == before


def test_closed_objects_raise_one_error(transport: str, remote: rdmatensor.RemoteDevice) -> None:
    device = rdmatensor.Device()
    local, group = device.allocate(8), rdmatensor.Group(device, 0, 1)
    store, region = rdmatensor.Store(device, 0, 1, 8), remote.region("region")
    for each in (local, group, store, region):
        each.close()
    calls: list[Callable[[], Any]] = [
        lambda: local.array,
        lambda: np.asarray(local),
        lambda: group.barrier(),
        lambda: group.info,
        lambda: store.publish(bytes(8)),
        lambda: store.take(),
        lambda: region.write(b"1"),
        lambda: region.read(),
        lambda: region.map(),
    ]
    device.close()
    remote.close()
    calls += [
        lambda: device.allocate(8),
        lambda: device.connect("127.0.0.1:1"),
        lambda: device.stats(),
        lambda: device.next_notification(0),
        lambda: rdmatensor.Group(device, 0, 1),
        lambda: rdmatensor.Store(device, 0, 1, 8),
        lambda: remote.notify(b""),
        lambda: remote.region("region"),
        lambda: remote.allocate(8),
        lambda: remote.post(remote.batch()),
    ]
    for call in calls:
        with pytest.raises(rdmatensor.Closed) as caught:
            call()
        assert caught.value.status == "CLOSED"
        assert isinstance(caught.value, rdmatensor.RdmaError)


def test_conversions_of_a_region_are_numpys(device: rdmatensor.Device) -> None:
    region = device.allocate(4, "int32")
    assert np.shares_memory(np.asarray(region), region.array)
    assert np.shares_memory(region.__array__(copy=False), region.array)
    assert np.asarray(region, dtype="f8").dtype == np.float64
    assert not np.shares_memory(region.__array__(copy=True), region.array)
    with pytest.raises(ValueError, match="copy"):
        np.asarray(region, dtype="f8", copy=False)
    whole: Any = region
    for refused in (len, iter):  # in bytes or in elements?
        with pytest.raises(TypeError):
            refused(whole)

# SPDX-License-Identifier: Apache-2.0
"""Tensors in CUDA memory as the local memory of operations.

The driver is tests/support/cuda_driver.c, and both ends are other processes: nothing else may find it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest

from support.peers import Peer, PeerFailed
from transport.conftest import TRANSPORT
from transport.gpus import needs_stand_in, with_driver
from transport.teams import Team

Spawn = Callable[..., Peer]

# Tensors are copied before any transport sees them.
pytestmark = pytest.mark.any_transport


@pytest.fixture
def gpu(spawn: Spawn, cuda_driver: str) -> Peer:
    """A process with CUDA devices."""
    return with_driver(spawn(), cuda_driver)


@pytest.fixture
def joined(gpu: Peer, peer: Peer) -> Iterator[Peer]:
    """The same, connected to a peer's region `host` in host memory."""
    peer.run("host = device.allocate((3, 100_000), 'float32', name='host')")
    gpu.run("remote = device.connect(to); host = remote.region('host')", to=peer.address)
    yield gpu


@pytest.mark.parametrize("kind", [0, 1])
@pytest.mark.parametrize("own_stream", [True, False])
def test_local_tensors(joined: Peer, peer: Peer, kind: int, own_stream: bool) -> None:
    """What is written is what was queued on the stream; what was read is there once the transfer is done."""
    joined.run(
        """
        tensor = KINDS[kind](numbers, device=cuda.second(), own_stream=own_stream)
        host.write(tensor).wait()
        """,
        kind=kind,
        own_stream=own_stream,
    )
    assert peer.get("(host.array == np.arange(300_000).reshape(3, -1) + 1).all()")
    peer.run("host.array[:] *= 2")
    joined.run(
        """
        host.read_into(tensor).wait()
        assert (tensor.get() == 2 * numbers).all()
        host.write(tensor, notify=5).wait()
        part = KINDS[kind](np.zeros(7, "float32"), own_stream=own_stream)
        host.read_into(part, offset=4).wait()
        assert part.get().tolist() == (2 * numbers).reshape(-1)[1:8].tolist()
        assert device.stats().copies == 3 * numbers.nbytes + part.get().nbytes
        remote.notify(KINDS[kind](np.arange(5, dtype="uint8"))).wait()
        """
    )
    assert peer.get("device.next_notification(60).immediate") == 5
    assert peer.get("device.next_notification(60).payload") == bytes(range(5))


def test_asyncio_and_dropped_transfers(joined: Peer, peer: Peer) -> None:
    peer.run("host.array[:] = 3")
    joined.run(
        """
        import asyncio
        tensor = cuda.DLPackTensor(numbers)
        async def read():
            await host.read_into(tensor)
        asyncio.run(read())
        assert (tensor.get() == 3).all()
        empty = cuda.InterfaceTensor(np.empty((0, 3), "float32"))
        host.write(empty).wait()
        host.read_into(empty).wait()
        """
    )


@needs_stand_in
def test_a_driver_that_fails(joined: Peer, peer: Peer) -> None:
    """Bytes that did not come are no success, however often one asks."""
    peer.run("host.array[:] = 3")
    joined.run(
        """
        def fails(call):
            try:
                call()
            except rdmatensor.DeviceError as error:
                assert "CUDA_ERROR_ILLEGAL_ADDRESS" in str(error), error
                return
            raise AssertionError("it did not fail")

        tensor = cuda.DLPackTensor(numbers)
        cuda.fail("cuEventQuery")
        fails(lambda: host.write(tensor))
        cuda.fail("cuMemcpyAsync")
        fails(lambda: host.read_into(tensor).wait())
        cuda.fail("")
        cuda.fail("cuMemAlloc_v2", 2)
        try:
            device.allocate(10, memory="cuda:0")
        except rdmatensor.DeviceError as error:
            assert error.status == "NO_MEMORY"
        cuda.fail("")
        host.read_into(tensor).wait()
        assert (tensor.get() == 3).all()
        """
    )
    assert peer.get("(host.array == 3).all()")
    if TRANSPORT != "shm":  # where reading completes within the call
        joined.run(
            """
            cuda.fail("cuMemcpyAsync")
            transfer = host.read_into(tensor)
            for _ in range(3):
                fails(transfer.wait)
            cuda.fail("")
            fails(transfer.result)
            """
        )


def test_what_is_refused(joined: Peer) -> None:
    joined.run(
        """
        kinds = "cuda" if device.transports["tcp"].usable else "host"
        def refused(text, call, kind=rdmatensor.UsageError):
            try:
                call()
            except kind as error:
                assert text in str(error), error
                return
            raise AssertionError(f"not refused: {text}")

        strided = cuda.InterfaceTensor(numbers)
        strided.strides = (4, 12)
        old = cuda.InterfaceTensor(numbers)
        old.version = 2
        for call in (host.write, host.read_into, device.register):
            refused("not C-contiguous", lambda: call(strided))
            refused("does not tell on which stream", lambda: call(old))
            refused("use var.detach()", lambda: call(cuda.TrackedTensor(numbers)))
        region = device.allocate(8, memory="cuda:0") if "cuda" in kinds else None
        if region is not None:
            region.close()
            refused("is closed", lambda: host.write(region), rdmatensor.Closed)
        fixed = cuda.InterfaceTensor(numbers)
        fixed.read_only = True
        for call in (host.read_into, device.register):
            refused("is read-only", lambda: call(fixed))
        with rdmatensor.Group(device, 0, 1) as group:
            refused("is read-only", lambda: group.all_reduce(numbers, fixed))
            refused("not C-contiguous", lambda: group.send(strided, 0))
            assert not sum(group.info.operations.values())
        batch = remote.batch()
        for call in (batch.write, batch.read_into):
            refused("not C-contiguous", lambda: call(host, strided))
        refused("is read-only", lambda: batch.read_into(host, fixed))
        assert len(batch) == 0
        for memory in ("cuda:x", "rocm:0", "cuda:-1", "cuda1"):
            refused("give \\"host\\"", lambda: device.allocate(8, memory=memory))
        refused("there is no CUDA device 63", lambda: device.allocate(8, memory="cuda:63"))
        """
    )


def test_batches(joined: Peer, peer: Peer) -> None:
    """Each post sends what the tensors hold by then, and fills them."""
    peer.run("first = device.allocate(1000, 'float32', name='first')")
    joined.run(
        """
        first = remote.region("first")
        for kind in KINDS:
            tensor, back = kind(numbers), kind(np.zeros(1000, "float32"), device=cuda.second())
            batch = remote.batch().write(host, tensor)
            batch.write(first, np.arange(1000, dtype="float32"), notify=3).read_into(first, back)
            batch.notify(kind(np.arange(3, dtype="uint8")), immediate=4)
            for factor in (1, 2):
                tensor.set(factor * numbers)
                remote.post(batch).wait()
                assert (host.read().view("float32").reshape(3, -1) == factor * numbers).all()
                assert (back.get() == np.arange(1000)).all()
                back.set(np.zeros(1000, "float32"))
        """
    )
    for _ in range(4):
        assert peer.get("device.next_notification(60).immediate") == 3
        assert peer.get("device.next_notification(60).payload") == bytes(range(3))


@needs_stand_in
def test_a_driver_that_fails_in_batches(joined: Peer) -> None:
    joined.run(
        """
        tensor = cuda.DLPackTensor(numbers)
        batches = [remote.batch().read_into(host, tensor), remote.batch().write(host, tensor)]
        cuda.fail("cuMemcpyAsync")
        for batch in 2 * batches:
            try:
                remote.post(batch).wait()
            except rdmatensor.DeviceError:
                continue
            raise AssertionError("a copy that failed is a success")
        cuda.fail("")
        """
    )


def test_stores(gpu: Peer, spawn: Spawn, cuda_driver: str) -> None:
    other = with_driver(spawn(), cuda_driver)
    pair = [gpu, other]
    for rank, each in enumerate(pair):
        each.run(
            "store = rdmatensor.Store(device, rank, 2, nbytes=numbers.nbytes, slot_nbytes=numbers.nbytes)",
            rank=rank,
        )
    for rank, each in enumerate(pair):
        each.run("store.connect(1 - rank, to, timeout=60)", to=pair[1 - rank].address, rank=rank)
    gpu.run("tensor = cuda.DLPackTensor(numbers); store.publish(tensor, mark=7)")
    other.run(
        """
        into = cuda.InterfaceTensor(np.zeros_like(numbers), device=cuda.second())
        assert store.pull(0, into, timeout=60).mark == 7
        assert (into.get() == numbers).all()
        into.set(3 * numbers)
        assert store.push(0, into, mark=8, timeout=60)
        """
    )
    gpu.run(
        """
        arrival = store.take(timeout=60)
        assert arrival.mark == 8
        assert (arrival.data.view("float32").reshape(3, -1) == 3 * numbers).all()
        arrival.release()
        """
    )
    for each in pair:
        each.run("store.close()")


@pytest.fixture
def groups(gpu: Peer, spawn: Spawn, cuda_driver: str) -> Iterator[Team]:
    team = Team([gpu, with_driver(spawn(), cuda_driver)]).join()
    yield team
    team.run("group.close()")


def test_groups(groups: Team) -> None:
    groups.run(
        """
        mine = numbers * (group.rank + 1)
        for kind in KINDS:
            tensor, out = kind(mine), kind(np.zeros_like(numbers))
            assert group.all_reduce(tensor, out) is out
            assert (out.get() == 3 * numbers).all() and (tensor.get() == mine).all()
            assert group.all_reduce(tensor, tensor) is tensor
            assert (tensor.get() == 3 * numbers).all()
            tensor = kind(mine)
            assert group.broadcast(tensor, root=1) is tensor
            assert (tensor.get() == 2 * numbers).all()
            tensor, joined = kind(mine), kind(np.zeros((6, 100_000), "float32"))
            assert group.all_gather(tensor, joined) is joined
            assert (joined.get() == np.concatenate([numbers, 2 * numbers])).all()
            assert (group.all_gather(tensor) == joined.get()).all()
            started = group.start("all_reduce", tensor, out, op="max")
            assert started.result(60) is out and (out.get() == 2 * numbers).all()
            if group.rank == 0:
                group.send(tensor, 1)
            else:
                group.receive(out, 0)
                assert (out.get() == numbers).all()
            group.barrier()
        """
    )


def test_without_a_driver(peer: Peer) -> None:
    if os.path.exists("/proc/driver/nvidia"):  # noqa: PTH110
        pytest.skip("this machine has a driver")
    with pytest.raises(PeerFailed, match=r"libcuda.so.1 is not installed"):
        peer.run("device.allocate(64, memory='cuda:0')")


@needs_stand_in
def test_a_driver_without_devices(spawn: Spawn, cuda_driver: str) -> None:
    peer = spawn({"CUDA_STANDIN_DEVICES": "0"})
    peer.run("import ctypes; ctypes.CDLL(driver)", driver=cuda_driver)
    with pytest.raises(PeerFailed, match="no CUDA-capable device"):
        peer.run("device.allocate(64, memory='cuda:0')")


def test_a_child_of_fork(gpu: Peer) -> None:
    gpu.run(
        """
        region = rdmatensor._api.cuda.empty(64, "uint8", "cuda:0")
        child = os.fork()
        if child == 0:
            try:
                region.to_host()
            except rdmatensor.UsageError as error:
                os._exit(0 if error.status == "FORKED" else 1)
            os._exit(2)
        assert os.waitpid(child, 0)[1] == 0
        """
    )

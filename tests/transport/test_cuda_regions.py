# SPDX-License-Identifier: Apache-2.0
"""Regions in CUDA memory: over shared memory CUDA itself copies, over tcp the owner does."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from support import cuda_tensors
from support.peers import Peer, PeerFailed
from transport.conftest import TRANSPORT
from transport.gpus import BOTH, REACH, needs_stand_in, with_driver

Spawn = Callable[..., Peer]
ON_SECOND = """
    memory = f"cuda:{cuda.second()}"
    on_gpu = device.allocate((3, 100_000), "float32", name="on gpu", memory=memory)
"""

# The tests choose the transport themselves.
pytestmark = pytest.mark.any_transport


@pytest.mark.parametrize("over", ["shm", "tcp"])
def test_regions(spawn: Spawn, cuda_driver: str, over: str) -> None:
    peer = with_driver(spawn(BOTH), cuda_driver)
    owner = with_driver(spawn(BOTH), cuda_driver)
    owner.run(ON_SECOND)
    peer.run(REACH, to=owner.address, over=over)
    peer.run(
        """
        numbers = np.arange(300_000, dtype="float32").reshape(3, -1)
        assert not region.read().any()  # new memory is zero
        region.write(numbers, notify=1).wait()
        assert (region.read().view("float32").reshape(3, -1) == numbers).all()
        """
    )
    owner.run(
        """
        assert device.next_notification(60).immediate == 1
        own = rdmatensor._api.cuda.array_of(on_gpu).to_host()
        assert (own == numbers - 1).all()
        # The region is the other library's memory too, and a local buffer of operations.
        here = device.allocate((3, 100_000), "float32", name="here")
        again = device.connect(device.address, transports=["tcp"]).region("here")
        again.write(on_gpu).wait()
        assert (here.array == own).all()
        """
    )


@pytest.mark.parametrize("over", ["shm", "tcp"])
def test_registered_tensors_and_their_lives(spawn: Spawn, cuda_driver: str, over: str) -> None:
    peer, owner = (with_driver(spawn(BOTH), cuda_driver) for _ in range(2))
    owner.run(
        """
        import gc, weakref
        tensor = cuda.DLPackTensor(numbers)
        on_gpu = device.register(tensor, name="on gpu")
        """
    )
    peer.run(REACH, to=owner.address, over=over)
    peer.run(
        "assert (region.read().view('float32') == np.arange(300_000, dtype='float32') + 1).all()"
    )
    peer.run("region.write(np.zeros(10, 'uint8')).wait()")
    # Over tcp, a peer's read waits for the default stream. CUDA knows nothing of another process's streams.
    owner.run(
        """
        late = cuda.DLPackTensor(numbers, own_stream=False)
        on_default = device.register(late, name="on default")
        cuda.delay(200_000)
        late.set(2 * numbers)
        cuda.delay(0)
        if over == "shm":
            late.wait()
        """,
        over=over,
    )
    peer.run(
        """
        both = remote.region("on default").read().view("float32")
        assert (both == 2 * (np.arange(300_000, dtype="float32") + 1)).all()
        """
    )
    owner.run(
        """
        on_gpu.close()
        before = cuda.allocated()
        region = device.allocate(5000, memory="cuda:0")
        region.close()
        cuda.expect_allocated(before + 5000)  # others may have its address
        del region
        gc.collect()
        cuda.expect_allocated(before)
        """
    )
    with pytest.raises(PeerFailed, match=r"withdrew the region|closed the region"):
        peer.run("region.read()")


def test_what_regions_refuse(spawn: Spawn, cuda_driver: str) -> None:
    peer, owner = (with_driver(spawn(BOTH), cuda_driver) for _ in range(2))
    owner.run(
        """
        on_gpu = device.allocate(64, name="on gpu", memory="cuda")
        def refused(text, call, kind=rdmatensor.UsageError):
            try:
                call()
            except kind as error:
                assert text in str(error), error
                return
            raise AssertionError(f"not refused: {text}")
        refused("torch.as_tensor", lambda: on_gpu.array)
        refused("torch.as_tensor", lambda: np.asarray(on_gpu))
        refused("__cuda_array_interface__", lambda: on_gpu.__dlpack__(), BufferError)
        assert not hasattr(device.allocate(8), "__cuda_array_interface__")
        """
    )
    for over, why in (("tcp", "cannot map"), ("shm", "cannot be mapped")):
        peer.run(REACH, to=owner.address, over=over)
        peer.run(
            """
            def unsupported(text, call):
                try:
                    call()
                except rdmatensor.Unsupported as error:
                    assert text in str(error), error
                    return
                raise AssertionError(f"not refused: {text}")
            unsupported("the memory of a GPU", lambda: region.fetch_add(0, 1))
            unsupported(why, region.map)
            """,
            why=why,
        )


def test_verbs_takes_no_regions(spawn: Spawn, cuda_driver: str) -> None:
    if TRANSPORT != "verbs":
        pytest.skip("other transports take them")
    owner = with_driver(spawn(), cuda_driver)
    with pytest.raises(PeerFailed, match="shm and tcp take that of CUDA devices"):
        owner.run("device.allocate(64, memory='cuda:0')")


def test_from_device_to_device(spawn: Spawn, cuda_driver: str) -> None:
    """No byte passes through the host. What is written is what was queued on the tensor's stream."""
    peer, owner = (with_driver(spawn(BOTH), cuda_driver) for _ in range(2))
    owner.run(ON_SECOND)
    peer.run(REACH, to=owner.address, over="shm")
    peer.run(
        """
        for kind in KINDS:
            tensor, back = kind(numbers), kind(np.zeros_like(numbers), device=cuda.second())
            region.write(tensor).wait()
            region.read_into(back).wait()
            assert (back.get() == numbers).all()
            part = kind(np.zeros(7, "float32"))
            region.read_into(part, offset=4).wait()
            assert part.get().tolist() == numbers.reshape(-1)[1:8].tolist()
            region.write(kind(np.empty((0, 3), "float32")), notify=9).wait()
        assert device.stats().copies == 0
        cuda.expect_imported(numbers.nbytes)
        fixed = cuda.InterfaceTensor(numbers)
        fixed.read_only = True
        try:
            region.read_into(fixed)
        except rdmatensor.UsageError as error:
            assert "read-only" in str(error)
        else:
            raise AssertionError("a read-only tensor was filled")
        try:
            region.write(tensor, offset=4)
        except rdmatensor.RegionError as error:
            assert error.status == "RANGE", error
        else:
            raise AssertionError("written beyond the end")
        remote.close()
        cuda.expect_imported(0)
        """
    )
    assert owner.get("device.next_notification(60).immediate") == 9


def test_parts_of_one_allocation(spawn: Spawn, cuda_driver: str) -> None:
    """Regions may begin anywhere in an allocation, which a process opens once."""
    peer, owner = (with_driver(spawn(BOTH), cuda_driver) for _ in range(2))
    owner.run(
        """
        tensor = cuda.InterfaceTensor(numbers)
        parts = [device.register(tensor.row(row), name=f"row {row}") for row in range(3)]
        """
    )
    peer.run(
        """
        peers = [device.connect(to, transports=["shm"]) for _ in range(2)]
        rows = [each.region(f"row {row}") for each in peers for row in range(3)]
        for row, each in enumerate(rows):
            assert (each.read().view("float32") == numbers[row % 3]).all()
        rows[4].write(np.zeros(100_000, "float32")).wait()
        assert not rows[1].read().any() and rows[2].read().any()
        cuda.expect_imported(numbers.nbytes)
        for each in peers:
            each.close()
        cuda.expect_imported(0)
        """,
        to=owner.address,
    )
    owner.run("assert not tensor.get()[1].any() and tensor.get()[2].any()")


def test_within_one_process(spawn: Spawn, cuda_driver: str) -> None:
    """CUDA refuses to open one's own handle."""
    with_driver(spawn(BOTH), cuda_driver).run(
        """
        on_gpu = device.allocate(numbers.nbytes, name="on gpu", memory="cuda:0")
        remote = device.connect(device.address, transports=["shm"])
        region = remote.region("on gpu")
        region.write(numbers).wait()
        assert (region.read().view("float32").reshape(3, -1) == numbers).all()
        cuda.expect_imported(0)
        """
    )


# What ends with an error, and where: at the owner, which then shares by tcp only, or at the peer.
UNAVAILABLE = [
    ("cuIpcGetMemHandle", 801, "owner", "connect to this device over tcp"),
    ("cuMemGetAddressRange_v2", 1, "owner", "connect to this device over tcp"),
    (
        "cuIpcOpenMemHandle_v2",
        801,
        "peer",
        r"not supported \(CUDA error 801.*to its owner over tcp",
    ),
    (
        "cuMemGetAddressRange_v2",
        1,
        "peer",
        r"invalid argument \(CUDA error 1.*to its owner over tcp",
    ),
]


@needs_stand_in
@pytest.mark.parametrize(("function", "code", "where", "text"), UNAVAILABLE)
def test_without_ipc(
    spawn: Spawn, cuda_driver: str, function: str, code: int, where: str, text: str
) -> None:
    peer, owner = (with_driver(spawn(BOTH), cuda_driver) for _ in range(2))
    failing = owner if where == "owner" else peer
    failing.run("cuda.fail(function, code)", function=function, code=code)
    owner.run("on_gpu = device.allocate(numbers.nbytes, name='on gpu', memory='cuda:0')")
    with pytest.raises(PeerFailed, match=text):
        peer.run(REACH, to=owner.address, over="shm")
    peer.run("cuda.expect_imported(0)")
    peer.run(REACH, to=owner.address, over="tcp")
    peer.run("region.write(numbers).wait()")
    peer.run("assert (region.read().view('float32').reshape(3, -1) == numbers).all()")


@needs_stand_in
def test_a_device_that_the_peer_does_not_see(spawn: Spawn, cuda_driver: str) -> None:
    peer = with_driver(spawn({**BOTH, "CUDA_STANDIN_DEVICES": "1"}), cuda_driver)
    owner = with_driver(spawn(BOTH), cuda_driver)
    owner.run("on_gpu = device.allocate(64, name='on gpu', memory='cuda:1')")
    with pytest.raises(PeerFailed, match="CUDA_VISIBLE_DEVICES"):
        peer.run(REACH, to=owner.address, over="shm")


@needs_stand_in
def test_a_driver_that_fails_at_the_peer(spawn: Spawn, cuda_driver: str) -> None:
    peer, owner = (with_driver(spawn(BOTH), cuda_driver) for _ in range(2))
    owner.run("on_gpu = device.allocate(numbers.nbytes, name='on gpu', memory='cuda:0')")
    peer.run(REACH, to=owner.address, over="shm")
    peer.run(
        """
        for function in ("cuMemcpyAsync", "cuEventQuery"):
            for call in (lambda: region.write(numbers), lambda: region.read()):
                cuda.fail(function)
                try:
                    call()
                except rdmatensor.RdmaError as error:
                    assert "CUDA_ERROR_ILLEGAL_ADDRESS" in str(error), error
                else:
                    raise AssertionError("a copy that failed is a success")
                cuda.fail("")
                remote.close()
                remote = device.connect(to, transports=["shm"])
                region = remote.region("on gpu")
                region.write(numbers).wait()
        """,
        to=owner.address,
    )


@needs_stand_in
def test_closing_waits_for_copies(spawn: Spawn, cuda_driver: str) -> None:
    """The memory is freed when nobody copies, or has it open, any more."""
    peer, owner = (with_driver(spawn(BOTH), cuda_driver) for _ in range(2))
    owner.run("import gc; on_gpu = device.allocate(8 << 20, name='on gpu', memory='cuda:0')")
    peer.run(REACH, to=owner.address, over="shm")
    peer.run("cuda.delay(100_000)")  # for each MiB
    peer.start("region.write(np.ones(8 << 20, 'uint8'), notify=1)")
    owner.run(
        """
        import time
        from support import waits
        memory = rdmatensor._api.cuda.array_of(on_gpu)
        waits.until("the copy does not begin", lambda: memory.to_host()[0] == 1)
        del memory
        began = time.monotonic()
        on_gpu.close()
        assert time.monotonic() > began + 0.1, "a copy was under way"
        del on_gpu
        gc.collect()
        cuda.expect_allocated(8 << 20)  # the peer has it open
        """
    )
    peer.finish()
    with pytest.raises(PeerFailed, match="closed the region"):
        peer.run("region.read(nbytes=1)")
    peer.run("region.close(); remote.close(); cuda.expect_imported(0)")
    owner.run(
        """
        spare = device.allocate(64, memory="cuda:0")
        cuda.expect_allocated(64)
        cuda.expect_no_early_free()
        """
    )


@pytest.mark.parametrize("killed", ["peer", "owner"])
def test_a_process_that_dies_while_it_copies(spawn: Spawn, cuda_driver: str, killed: str) -> None:
    peer, owner = (with_driver(spawn(BOTH), cuda_driver) for _ in range(2))
    owner.run("import gc; on_gpu = device.allocate(8 << 20, name='on gpu', memory='cuda:0')")
    peer.run(REACH, to=owner.address, over="shm")
    peer.run("cuda.delay(50_000)")
    peer.start(
        """
        try:
            while True:
                remote.notify(immediate=1)
                region.write(np.ones(8 << 20, "uint8")).wait()
                region.read()
        except rdmatensor.ConnectionLost as error:
            lost = str(error)
        """
    )
    owner.run("assert device.next_notification(60).immediate == 1")
    if killed == "peer":
        peer.kill()
        owner.run(
            """
            import time
            began = time.monotonic()
            on_gpu.close()
            assert time.monotonic() < began + 5, "nobody copies any more"
            del on_gpu
            gc.collect()
            cuda.expect_allocated(0)
            cuda.expect_no_early_free()
            """
        )
    else:
        owner.kill()
        peer.finish()
        peer.run("assert lost; remote.close(); cuda.expect_imported(0)")
        peer.run("cuda.delay(0); device.allocate(64, memory='cuda:0')")


@pytest.mark.parametrize("library", ["torch", "cupy"])
@pytest.mark.parametrize("over", ["shm", "tcp"])
def test_libraries(spawn: Spawn, cuda_driver: str, library: str, over: str) -> None:
    """Arrays of other libraries, on streams of their own."""
    if not cuda_tensors.ON_GPU:
        pytest.skip(f"{library} needs a GPU: make gpu")
    found = pytest.importorskip(library, reason=f"{library} is not installed")
    if library == "torch" and not found.cuda.is_available():
        pytest.skip(f"torch {found.__version__} finds no GPU")
    peer, owner = (with_driver(spawn(BOTH), cuda_driver) for _ in range(2))
    for each in (peer, owner):
        each.run(
            """
            if library == "torch":
                import torch
                view = lambda array: torch.as_tensor(array, device="cuda")
                filled = lambda value: torch.full((1000, 1000), value, device="cuda")
                stream = lambda: torch.cuda.stream(torch.cuda.Stream())
            else:
                import cupy
                view, stream = cupy.asarray, lambda: cupy.cuda.Stream(non_blocking=True)
                filled = lambda value: cupy.full((1000, 1000), value, "float32")
            """,
            library=library,
        )
    owner.run(
        """
        on_gpu = device.allocate((1000, 1000), "float32", name="on gpu", memory="cuda:0")
        view(on_gpu)[:] = filled(3.0)
        device.register(filled(5.0), name="registered")
        _ = float(view(on_gpu).sum())  # waits for the stream
        """
    )
    peer.run(REACH, to=owner.address, over=over)
    peer.run(
        """
        with stream():
            into = filled(0.0)
            region.read_into(into).wait()
            assert bool((into == 3).all())
            remote.region("registered").read_into(into).wait()
            assert bool((into == 5).all())
            region.write((into + 2) * 2, notify=1).wait()
        """
    )
    owner.run(
        "assert device.next_notification(60).immediate == 1; assert bool((view(on_gpu) == 14).all())"
    )


@pytest.mark.long
def test_thousand_lives(spawn: Spawn, cuda_driver: str) -> None:
    """Nothing is left of regions and connections."""
    peer, owner = (with_driver(spawn(BOTH), cuda_driver) for _ in range(2))
    for each in (peer, owner):
        each.run("cuda.delay(0)")
    open_one = "on_gpu = device.allocate(4096, name='on gpu', memory='cuda:0')"
    use = REACH + "    region.write(np.ones(4096, 'uint8')).wait(); remote.close()"
    counts = []
    for life in range(1000):
        owner.run(open_one)
        peer.run(use, to=owner.address, over="shm")
        owner.run("on_gpu.close(); del on_gpu")
        if life in (20, 999):
            counts.append([each.get("len(os.listdir('/proc/self/fd'))") for each in (peer, owner)])
    # One life may end a little later than it is counted.
    assert all(late <= early + 3 for early, late in zip(*counts, strict=True)), counts
    peer.run("cuda.expect_imported(0)")
    owner.run("assert cuda.allocated() <= 4096; cuda.expect_no_early_free()")

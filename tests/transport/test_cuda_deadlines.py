# SPDX-License-Identifier: Apache-2.0
"""Devices that do not get there: every wait ends, and what still runs keeps its memory."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from support.peers import Peer, PeerFailed
from transport.gpus import BOTH, REACH, needs_stand_in, with_driver

Spawn = Callable[..., Peer]
LATE = """
    def late(call):
        rdmatensor.config.set("DEADLINE_MS", "200")
        try:
            call()
        except rdmatensor.DeadlineExceeded as error:
            assert "CUDA device" in str(error) and "RDMATENSOR_DEADLINE_MS" in str(error), error
            return str(error)
        finally:
            rdmatensor.config.set("DEADLINE_MS", "60000")
        raise AssertionError("it was in time")
"""

pytestmark = [pytest.mark.any_transport, needs_stand_in]


def test_tensors(spawn: Spawn, peer: Peer, cuda_driver: str) -> None:
    """Nothing is sent that is not there, and nothing is written later."""
    peer.run("host = device.allocate((3, 100_000), 'float32', name='host'); host.array[:] = 3")
    gpu = with_driver(spawn(), cuda_driver)
    gpu.run(LATE)
    gpu.run(
        """
        host = device.connect(to).region("host")
        for kind in KINDS:
            tensor = kind(numbers)
            tensor.wait()
            cuda.hold(0)
            tensor.set(2 * numbers)  # never ends
            late(lambda: host.write(tensor))
            late(lambda: host.read_into(tensor).wait())
            with rdmatensor.Group(device, 0, 1) as group:
                late(lambda: group.all_reduce(tensor, tensor))
            late(lambda: device.allocate(64, memory="cuda:0"))
            cuda.hold(-1)
            tensor.wait()
            assert (tensor.get() == 2 * numbers).all()
        """,
        to=peer.address,
    )
    assert peer.get("(host.array == 3).all()")
    gpu.run("host.write(tensor).wait(); cuda.delay(0)")
    assert peer.get("(host.array == 2 * (np.arange(300_000).reshape(3, -1) + 1)).all()")


@pytest.mark.parametrize("over", ["shm", "tcp"])
def test_regions(spawn: Spawn, cuda_driver: str, over: str) -> None:
    """The peer's operation fails, or the owner's part in it; the connection and the region go on."""
    peer, owner = (with_driver(spawn(BOTH), cuda_driver) for _ in range(2))
    stuck = peer if over == "shm" else owner
    owner.run("on_gpu = device.allocate((3, 100_000), 'float32', name='on gpu', memory='cuda:0')")
    for each in (peer, owner):
        each.run(
            LATE + "    cuda.delay(0); other = cuda.InterfaceTensor(numbers, own_stream=False)"
        )
        each.run("other.wait()")
    peer.run(REACH, to=owner.address, over=over)
    stuck.run("cuda.hold(0); other.set(numbers)")
    if over == "shm":
        peer.run(
            """
            for call in (lambda: region.write(numbers).wait(), lambda: region.read(nbytes=4)):
                text = late(call)
                assert " bytes to or from CUDA device 0 within 200 ms" in text, text
            """
        )
    else:
        owner.run("rdmatensor.config.set('DEADLINE_MS', '200')")
        with pytest.raises(PeerFailed, match="its GPU failed"):
            peer.run("region.write(numbers).wait(60)")
    stuck.run("cuda.hold(-1); rdmatensor.config.set('DEADLINE_MS', '60000'); other.wait()")
    peer.run(REACH, to=owner.address, over=over)
    peer.run("region.write(5 * numbers, notify=1).wait()")
    owner.run(
        """
        assert device.next_notification(60).immediate == 1
        assert (rdmatensor._api.cuda.array_of(on_gpu).to_host() == 5 * numbers).all()
        """
    )


def test_a_copy_that_goes_on_after_its_deadline(spawn: Spawn, cuda_driver: str) -> None:
    """Its owner frees nothing, even when the peer has left, and the peer none of its own."""
    peer, owner = (with_driver(spawn(BOTH), cuda_driver) for _ in range(2))
    owner.run("import gc; on_gpu = device.allocate(8 << 20, name='on gpu', memory='cuda:0')")
    peer.run(REACH, to=owner.address, over="shm")
    peer.run(LATE)
    peer.run(
        """
        cuda.delay(0)
        ones = np.ones(8 << 20, "uint8")
        cuda.hold(1)
        late(lambda: region.write(ones).wait())
        del ones
        region.close(); remote.close()
        cuda.expect_imported(8 << 20)
        """
    )
    owner.run(
        """
        rdmatensor.config.set("DEADLINE_MS", "200")
        on_gpu.close()
        del on_gpu
        gc.collect()
        cuda.expect_allocated(8 << 20)
        """
    )
    peer.run(
        """
        cuda.hold(-1)
        from support import waits
        def imported():
            device.allocate(64, memory="cuda:0").close()
            return cuda._count("standin_imported")
        waits.until("it stays open", lambda: imported() == 0)
        """
    )
    owner.run(
        """
        spare = device.allocate(64, memory="cuda:0")
        cuda.expect_allocated(64)
        cuda.expect_no_early_free()
        """
    )


@pytest.mark.parametrize("ends", ["killed", "exits"])
def test_a_process_that_ends_with_copies_in_flight(
    spawn: Spawn, cuda_driver: str, ends: str
) -> None:
    peer, owner = (with_driver(spawn(BOTH), cuda_driver) for _ in range(2))
    owner.run("import gc; on_gpu = device.allocate(8 << 20, name='on gpu', memory='cuda:0')")
    peer.run(REACH, to=owner.address, over="shm")
    peer.run(
        LATE + "    cuda.hold(2)\n    late(lambda: region.write(np.ones(8 << 20, 'uint8')).wait())"
    )
    if ends == "killed":
        peer.kill()
    else:
        peer.close()
    owner.run(
        """
        on_gpu.close()
        del on_gpu
        gc.collect()
        cuda.expect_allocated(0)
        cuda.expect_no_early_free()
        """
    )

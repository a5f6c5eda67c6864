# SPDX-License-Identifier: Apache-2.0
"""One end of a connection of bench_rivals.py: `rival_member.py LIBRARY HOST BYTES`, the passive or the active
end of rdmatensor, NIXL, Mooncake or Ray."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from member import serve_steps, timed

WARM_S = 0.3
PATIENCE_S = 3600.0
Write = Callable[[], object]


class Ours:
    """rdmatensor."""

    def __init__(self, host: str, memory: Any) -> None:
        import rdmatensor

        self._device = rdmatensor.Device()
        self._memory = self._device.allocate(memory.nbytes, name="region").array
        self._memory[:] = 1

    def about(self) -> Any:
        """What the active end needs to know of the passive one."""
        return self._device.address

    def connect(self, about: Any) -> None:
        """Become the active end."""
        self._region = self._device.connect(about).region("region")

    def write(self, nbytes: int) -> Write:
        """What writes `nbytes` bytes and waits until they are complete."""
        data = self._memory[:nbytes]
        return lambda: self._region.write(data).wait()


class Answered(Ours):
    """rdmatensor, whose passive end answers each write."""

    def about(self) -> Any:
        threading.Thread(target=self._answer, daemon=True).start()
        return super().about()

    def _answer(self) -> None:
        import rdmatensor

        for note in self._device.notifications(PATIENCE_S):
            with contextlib.suppress(rdmatensor.RdmaError):  # it may have disconnected
                note.source.notify(immediate=note.immediate)

    def write(self, nbytes: int) -> Write:
        data = self._memory[:nbytes]

        def write() -> None:
            self._region.write(data, notify=1)
            self._device.next_notification(PATIENCE_S)

        return write


class Ray:
    """An actor of Ray, which takes arrays out of the object store. It is the passive end."""

    def __init__(self, host: str, memory: Any) -> None:
        self._memory = memory

    def about(self) -> None:
        return None

    def connect(self, about: None) -> None:
        import ray

        ray.init(
            num_cpus=1, object_store_memory=1 << 30, include_dashboard=False, log_to_driver=False
        )

        @ray.remote(num_cpus=1)
        class Taker:
            def take(self, array: Any) -> int:
                return int(array[-1])

        taker: Any = Taker
        self._ray, self._taker = ray, taker.remote()

    def write(self, nbytes: int) -> Write:
        data = self._memory[:nbytes]
        return lambda: self._ray.get(self._taker.take.remote(data))


class Nixl:
    """NIXL over UCX: one prepared transfer, which is posted repeatedly."""

    def __init__(self, host: str, memory: Any) -> None:
        from nixl._api import nixl_agent, nixl_agent_config  # type: ignore[import-not-found]

        self._memory = memory
        config = nixl_agent_config(True, True, 0, backends=["UCX"])
        self._agent = nixl_agent(f"agent {id(self)}", config)
        place = [(memory.ctypes.data, memory.nbytes, 0, "")]
        self._agent.register_memory(place, mem_type="DRAM")

    def about(self) -> Any:
        return self._agent.get_agent_metadata(), self._memory.ctypes.data

    def connect(self, about: Any) -> None:
        metadata, self._there = about
        self._peer = self._agent.add_remote_agent(metadata)

    def write(self, nbytes: int) -> Write:
        ends = [
            self._agent.get_xfer_descs([(address, nbytes, 0)], mem_type="DRAM")
            for address in (self._memory.ctypes.data, self._there)
        ]
        transfer = self._agent.initialize_xfer("WRITE", *ends, self._peer)

        def write() -> None:
            state = self._agent.transfer(transfer)
            while state != "DONE":
                if state == "ERR":
                    raise RuntimeError("the transfer of NIXL failed")
                state = self._agent.check_xfer_state(transfer)

        return write


class Mooncake:
    """Mooncake over TCP, because it has no shared memory."""

    def __init__(self, host: str, memory: Any) -> None:
        from mooncake.engine import TransferEngine  # type: ignore[import-not-found]

        self._host, self._memory, self._engine = host, memory, TransferEngine()
        if self._engine.initialize(host, "P2PHANDSHAKE", "tcp", ""):
            raise SystemExit("the engine of Mooncake does not start")
        self._engine.register_memory(memory.ctypes.data, memory.nbytes)

    def about(self) -> Any:
        return f"{self._host}:{self._engine.get_rpc_port()}", self._memory.ctypes.data

    def connect(self, about: Any) -> None:
        self._session, self._there = about

    def write(self, nbytes: int) -> Write:
        place = self._session, self._memory.ctypes.data, self._there, nbytes

        def write() -> None:
            if self._engine.transfer_sync_write(*place):
                raise RuntimeError("the transfer of Mooncake failed")

        return write


LIBRARIES: dict[str, Any] = {
    "rdmatensor": Ours,
    "rdmatensor, answered": Answered,
    "NIXL": Nixl,
    "Mooncake": Mooncake,
    "Ray": Ray,
}


def main(library: str, host: str, nbytes: int) -> None:
    end = LIBRARIES[library](host, np.ones(nbytes, np.uint8))

    def make(nbytes: int) -> Write:
        write: Write = end.write(nbytes)
        # The kernel needs a while to give threads that talk to each other a core each.
        until = time.monotonic() + WARM_S
        while time.monotonic() < until:
            timed(write, 2)
        return write

    serve_steps(make, about=end.about, connect=end.connect)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))

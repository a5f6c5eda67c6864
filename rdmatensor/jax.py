# SPDX-License-Identifier: Apache-2.0
"""JAX on clusters of CPUs: collective operations of `jax.distributed` programs over groups of devices.

    import rdmatensor.jax

    rdmatensor.jax.use()               # before jax is imported
    import jax

    jax.distributed.initialize()       # finds the other processes by itself

jaxlib's collectives "mpi" load an MPI at run time; the one of this package consists of what they call.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import itertools
import os
import socket
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from functools import partial, wraps
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from . import metrics
from ._api.extras import needed_by
from ._api.hlo import partitions
from ._api.wait import milliseconds
from ._ffi import ffi
from ._tools.roles import Role, device_of, join, role_of
from .device import Device
from .errors import Unsupported, UsageError, check
from .group import Group

__all__ = ["use"]

_LIBRARY = Path(__file__).with_name("librdmatensor_mpi.so")
_VARIABLE = "MPITRAMPOLINE_LIB"
_COLLECTIVES = "JAX_CPU_COLLECTIVES_IMPLEMENTATION"
_ADDRESS_BYTES = 256

_Hook = Callable[[type[BaseException], BaseException, "TracebackType | None"], object]
_lock = threading.Lock()
_used: _Use | None = None


class _Use:
    """The place of this process, the group of all, and the library that has the group."""

    def __init__(self, role: Role, timeout: float) -> None:
        self.role = role
        self._process = os.getpid()
        self.device: Device = device_of(role)
        try:
            self.group: Group = join(self.device, role, "jax", timeout)
            self.coordinator = _coordinator(self.group, role, timeout)
            self.library = ctypes.CDLL(str(_LIBRARY))
            begin = self.library.rdt_mpi_begin
            begin.argtypes = [ctypes.c_void_p, ctypes.c_int]
            handle = int(ffi.cast("uintptr_t", self.group._calls.handle()))
            check(begin(handle, milliseconds(timeout)))
        except BaseException:
            self.device.close()
            raise

    def announce(self, cliques: Sequence[Sequence[Any]]) -> None:
        """Tell of the cliques of a program that begins."""
        numbers = [
            number
            for each in cliques
            for number in (each[0].id, len(each), *(device.process_index for device in each))
        ]
        given = (ctypes.c_int32 * len(numbers))(*numbers)
        check(self.library.rdt_mpi_program(given, len(numbers)))

    def tell_failure(
        self,
        before: _Hook,
        kind: type[BaseException],
        error: BaseException,
        trace: TracebackType | None,
    ) -> None:
        """Let the others fail at once after an exception that ends this process; JAX would wait for them."""
        before(kind, error, trace)
        if os.getpid() != self._process:
            return
        text = f"rank {self.role.rank} ended with {kind.__name__}: {error}"
        self.library.rdt_mpi_abort(text.encode()[:511])

    def end(self) -> None:
        """Leave the group, once JAX has ended what it runs. A child of fork does nothing."""
        if os.getpid() != self._process:
            return
        self.library.rdt_mpi_end()
        self.device.close()


def use(
    rank: int | None = None,
    size: int | None = None,
    root: str | None = None,
    *,
    timeout: float = 600.0,
) -> None:
    """Let the collective operations of JAX on CPUs run over rdmatensor. Blocks until all processes call it.

    Call it in each process before jax is imported, because jaxlib looks for its MPI when it is loaded. Then
    call jax.distributed.initialize() or keras.distribution.initialize(), which need no arguments any more.

    Without arguments, the place of the process comes from TF_CONFIG (`rdmatensor launch`, Kubernetes), or
    from the variables of torchrun (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT), Slurm or MPI; without any of
    them the process is alone. `root` is the "host:port" at which rank 0 listens for the others. `timeout`, in
    seconds, bounds this call and each collective operation: one that waits so long for another process fails.

    Calling it again does nothing. The process leaves the others when it ends. Raises UsageError if the
    place is unclear or jaxlib was loaded before, ModuleNotFoundError without jax, and what Group raises, such
    as DeadlineExceeded, which names the missing ranks. Thread-safe.
    """
    global _used
    with _lock:
        if _used is not None:
            return
        path = str(_LIBRARY)
        if "jaxlib" in sys.modules and os.environ.get(_VARIABLE) != path:
            raise UsageError(
                "jaxlib was loaded before rdmatensor.jax.use(), and looks for its MPI only then: call use() "
                f"before `import jax`, start with `rdmatensor launch --jax`, or set {_VARIABLE}={path}"
            )
        used = _Use(role_of(os.environ, rank, size, root), timeout)
        # JAX ends its programs when Python ends, in a function that `import jax` registers; ours has to run
        # after it, so it is registered before.
        atexit.register(used.end)
        sys.excepthook = partial(used.tell_failure, sys.excepthook)
        os.environ[_VARIABLE] = path
        os.environ[_COLLECTIVES] = "mpi"
        with needed_by("rdmatensor.jax.use()"):
            _tell_jax(used)
        _used = used


def _tell_jax(used: _Use) -> None:
    """Let jax choose the MPI, and find the place of this process, before any other that it may know."""
    import jax
    from jax._src.clusters import ClusterEnv

    # The variable has no effect if something else has imported jax. A process that is alone may have several
    # devices, which the MPI does not permit.
    together = used.role.size > 1
    jax.config.update("jax_cpu_collectives_implementation", "mpi" if together else None)

    class RdmatensorCluster(ClusterEnv):  # type: ignore[misc]
        """What jax.distributed.initialize() asks; jax finds subclasses by itself."""

        name = "rdmatensor"

        @classmethod
        def is_env_present(cls) -> bool:
            return True

        @classmethod
        def get_coordinator_address(cls, **_: object) -> str:
            return used.coordinator

        @classmethod
        def get_process_count(cls) -> int:
            return used.role.size

        @classmethod
        def get_process_id(cls) -> int:
            return used.role.rank

    # Slurm sets its variables also for a shell in which `rdmatensor launch` runs.
    ClusterEnv._cluster_types.remove(RdmatensorCluster)
    ClusterEnv._cluster_types.insert(0, RdmatensorCluster)
    if together:
        _announce_programs(used)


def _announce_programs(used: _Use) -> None:
    """Tell the library, before a program runs for the first time, whom its operations concern: XLA does not.

    XLA asks the library for groups then. So the program is waited for, lest the next one be taken for it.
    """
    import jax
    from jax._src.interpreters.pxla import ExecuteReplicated

    run = ExecuteReplicated.__call__
    known: weakref.WeakSet[Any] = weakref.WeakSet()
    one_by_one = threading.RLock()

    @wraps(run)
    def announced(program: Any, *arguments: Any) -> Any:
        cliques = [] if program in known else _cliques_of(program, used.role.rank)
        if not cliques:
            known.add(program)
            return run(program, *arguments)
        with one_by_one:
            used.announce(cliques)
            results = run(program, *arguments)
            with contextlib.suppress(Exception):  # whoever uses the results is told
                jax.block_until_ready(results)
        known.add(program)
        return results

    ExecuteReplicated.__call__ = announced


def _cliques_of(program: Any, rank: int) -> list[tuple[Any, ...]]:
    """Return the devices of each clique with which this process works together in a program.

    Raises Unsupported if a process has several of the devices, or cliques cannot be told from each other.
    """
    if program.backend.platform != "cpu":
        return []
    shardings = [*program.in_handler.in_shardings, *program.out_handler.out_shardings]
    devices = next(
        (each._device_assignment for each in shardings if hasattr(each, "device_set")), ()
    )
    texts = (each.to_string() for each in program.xla_executable.hlo_modules())
    found: dict[tuple[int, ...], bool] = {}
    for partition in itertools.chain.from_iterable(map(partitions, texts)):
        if len({each.process_index for each in devices}) < len(devices):
            raise Unsupported(
                "a process has several devices: start one process for each device, without "
                "--xla_force_host_platform_device_count or jax_num_cpu_devices",
                "UNSUPPORTED",
            )
        for group in partition.groups:
            if any(devices[each].process_index == rank for each in group):
                found[group] = found.get(group, False) or partition.sure
    cliques = [tuple(devices[each] for each in group) for group in found]
    places = [(each[0].id, [d.process_index for d in each].index(rank)) for each in cliques]
    for place, sure in zip(places, found.values(), strict=True):
        if not sure and places.count(place) > 1:
            raise Unsupported(
                "a branch of a program (jax.lax.cond) has a collective operation of other devices than "
                "operations elsewhere in it have: move it out of the branch",
                "UNSUPPORTED",
            )
    return cliques


def _coordinator(group: Group, role: Role, timeout: float) -> str:
    """Return the address of JAX's coordinator: where rank 0 is, at a port that was free there just now."""
    host = role.root.rpartition(":")[0] or "127.0.0.1"
    address = np.zeros(_ADDRESS_BYTES, np.uint8)
    if role.rank == 0:
        with socket.socket() as probe:
            probe.bind(("", 0))
            text = f"{host}:{probe.getsockname()[1]}".encode()
        address[: len(text)] = np.frombuffer(text, np.uint8)
    group.broadcast(address, timeout=timeout)
    return address.tobytes().rstrip(b"\0").decode()


def run(arguments: Sequence[str]) -> None:
    """Call use(), and run a program as rdmatensor.metrics.run does. `rdmatensor launch --jax` calls it."""
    use()
    metrics.run(arguments)

# SPDX-License-Identifier: Apache-2.0
"""Tell which process this is, and form sets of processes, by Horovod's names."""

from __future__ import annotations

import socket
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import tensorflow as tf

from ...errors import Cancelled, ConnectionFailure, DeadlineExceeded, Unsupported, UsageError
from ...train import costs
from ...train.run import session
from ...train.run.membership import Membership
from ...train.run.session import rank, size
from ...train.run.subgroup import Subgroup, gather_texts
from ..reductions import HorovodInternalError

__all__ = ["rank", "size"]

_LOSSES = (
    *(tf.errors.AbortedError, tf.errors.CancelledError, tf.errors.UnavailableError),
    *(tf.errors.DeadlineExceededError, ConnectionFailure, DeadlineExceeded, Cancelled),
)


@contextmanager
def internal_errors() -> Iterator[None]:
    """Raise HorovodInternalError where others are lost within the block."""
    try:
        yield
    except _LOSSES as error:
        raise HorovodInternalError(str(error)) from error


class ProcessSet:
    """Some of the processes, which run operations together. add_process_set makes the group of them.

    Not thread-safe.
    """

    def __init__(self, ranks: Iterable[int]) -> None:
        self.ranks: list[int] = sorted(ranks)
        self.process_set_id: int | None = None
        self.members: Membership | None = None

    def size(self) -> int | None:
        """Return how many processes it has; None before it is added."""
        return None if self.process_set_id is None else len(self.ranks)

    def rank(self) -> int | None:
        """Return the number of this process in it; None before it is added, or if this process is in none."""
        if self.process_set_id is None or not self.included():
            return None
        return self.ranks.index(rank())

    def included(self) -> bool:
        """Return whether this process is in it."""
        return rank() in self.ranks

    def __repr__(self) -> str:
        return f"ProcessSet(process_set_id={self.process_set_id}, ranks={self.ranks})"


class _Global(ProcessSet):
    """All processes."""

    def __init__(self) -> None:
        self.process_set_id = 0

    @property
    def ranks(self) -> list[int]:  # type: ignore[override]
        """All ranks; none before init()."""
        return list(range(size())) if is_initialized() else []


global_process_set: ProcessSet = _Global()
_sets: dict[int, ProcessSet] = {}
_added = 0
_hosts: list[str] = []
_timeline = ExitStack()


def init(comm: Any = None, process_sets: Sequence[ProcessSet] | str | None = None) -> None:
    """Join the other processes, as rdmatensor.train.init does. It blocks until all have called it.

    `process_sets` are added at once, if they are given as a list. Raises Unsupported for a `comm` that is not
    all processes, and what rdmatensor.train.init raises.
    """
    with internal_errors():
        run = session.init()
        if isinstance(comm, list) and comm == list(range(run.size)):
            comm = None
        if comm is not None:
            raise Unsupported(
                "init(comm=...): processes are those that a launcher starts: start these only, and form sets "
                "of them with add_process_set",
                "UNSUPPORTED",
            )
        if not _hosts:
            host = socket.gethostname()
            _hosts[:] = [host] if run.group is None else gather_texts(run, host)
        for each in process_sets or () if not isinstance(process_sets, str) else ():
            add_process_set(each)


def shutdown() -> None:
    """Leave the other processes. init() joins them again, without the process sets."""
    for each in _sets.values():
        each.process_set_id = each.members = None
    _sets.clear()
    _hosts.clear()
    session.shutdown()


def is_initialized() -> bool:
    """Return whether this process has joined the others."""
    return bool(_hosts)


def _on_host(number: int) -> list[int]:
    session.current()
    return [each for each, host in enumerate(_hosts) if host == _hosts[number]]


def local_rank() -> int:
    """Return the number of this process among those of its host."""
    return _on_host(rank()).index(rank())


def local_size() -> int:
    """Return how many processes this host has."""
    return len(_on_host(rank()))


def _across() -> list[int]:
    """Return the processes that have this one's place on their hosts."""
    place = _on_host(rank()).index(rank())
    return [each for each in range(size()) if _on_host(each).index(each) == place]


def cross_rank() -> int:
    """Return the number of this process among those with the same place on their hosts."""
    return _across().index(rank())


def cross_size() -> int:
    """Return how many hosts have a process in this one's place."""
    return len(_across())


def is_homogeneous() -> bool:
    """Return whether all hosts have equally many processes."""
    return len({_hosts.count(each) for each in _hosts}) == 1


def size_op(process_set_id: int = 0, name: str | None = None) -> Any:
    """Return the number of processes in a set as a tensor of int32."""
    return tf.constant(_set_of(process_set_id).size(), tf.int32, name=name)


def rank_op(name: str | None = None) -> Any:
    """Return rank() as a tensor of int32."""
    return tf.constant(rank(), tf.int32, name=name)


def local_size_op(name: str | None = None) -> Any:
    """Return local_size() as a tensor of int32."""
    return tf.constant(local_size(), tf.int32, name=name)


def local_rank_op(name: str | None = None) -> Any:
    """Return local_rank() as a tensor of int32."""
    return tf.constant(local_rank(), tf.int32, name=name)


def process_set_included_op(process_set_id: int = 0, name: str | None = None) -> Any:
    """Return 1 if this process is in a set, and else 0, as a tensor of int32."""
    return tf.constant(int(_set_of(process_set_id).included()), tf.int32, name=name)


def _set_of(number: int) -> ProcessSet:
    found = global_process_set if number == 0 else _sets.get(number)
    if found is None:
        raise UsageError(f"there is no process set {number}: add_process_set adds one")
    return found


def add_process_set(process_set: ProcessSet | Iterable[int]) -> ProcessSet:
    """Form the group of some processes, and return the set. All processes call it, also those not in it.

    Raises UsageError if ranks do not exist, or if there is a set of the same ones.
    """
    global _added
    added = process_set if isinstance(process_set, ProcessSet) else ProcessSet(process_set)
    run = session.current()
    if (
        not added.ranks
        or len({*added.ranks}) < len(added.ranks)
        or not {*added.ranks} <= {*run.ranks}
    ):
        raise UsageError(f"{added}: give different ranks, 0 to {run.size - 1}")
    if added.ranks in [each.ranks for each in (*_sets.values(), global_process_set)]:
        raise UsageError(f"there is a process set of these ranks already: {added.ranks}")
    _added += 1
    with internal_errors():
        if run.group is not None:
            assert run.device is not None
            name = f"rdmatensor.horovod.{_added} of {added.ranks}"
            run.group.barrier(timeout=run.timeout, detail=f"add_process_set: {name}")
            addresses = gather_texts(run, run.device.address)
            if run.rank in added.ranks:
                added.members = Subgroup(run, added.ranks, addresses[added.ranks[0]], name)
        else:
            added.members = run
    added.process_set_id = _added
    _sets[_added] = added
    return added


def remove_process_set(process_set: ProcessSet) -> bool:
    """Forget a set. All processes call it. Return whether it was there."""
    if process_set.process_set_id is None or process_set is global_process_set:
        return False
    members = process_set.members
    if isinstance(members, Subgroup):
        members.leave()
        if members in members.parts:
            members.parts.remove(members)
    del _sets[process_set.process_set_id]
    process_set.process_set_id = process_set.members = None
    return True


def members_of(process_set: ProcessSet) -> Any:
    """Return the processes that run an operation together.

    Raises UsageError if this one is not among them, or if the set was not added.
    """
    run = session.current()
    run.check()
    if process_set is global_process_set:
        return run
    if process_set.process_set_id is None:
        raise UsageError(f"{process_set}: call add_process_set in all processes first")
    if process_set.members is None:
        raise UsageError(f"rank {run.rank} is not in {process_set}: let its members call this only")
    return process_set.members


def start_timeline(file_path: str, mark_cycles: bool = False) -> None:
    """Write what operations do from now on to a file, as rdmatensor.train.trace does."""
    _timeline.enter_context(costs.trace(file_path))


def stop_timeline() -> None:
    """End what start_timeline began, and write the file."""
    _timeline.close()


def _no(name: str, does: str) -> Any:
    def answer(*_: Any, **__: Any) -> bool:
        return False

    answer.__name__ = answer.__qualname__ = name
    answer.__doc__ = f"Return False: {does}."
    return answer


mpi_built = _no("mpi_built", "tensors travel over rdmatensor, not over MPI")
mpi_enabled = _no("mpi_enabled", "tensors travel over rdmatensor, not over MPI")
mpi_threads_supported = _no("mpi_threads_supported", "there is no MPI")
gloo_built = _no("gloo_built", "tensors travel over rdmatensor, not over gloo")
gloo_enabled = _no("gloo_enabled", "tensors travel over rdmatensor, not over gloo")
nccl_built = _no("nccl_built", "tensors of GPUs travel through the host's memory")
ddl_built = _no("ddl_built", "there is no DDL")
ccl_built = _no("ccl_built", "there is no oneCCL")
cuda_built = _no("cuda_built", "operations act on the host's memory")
rocm_built = _no("rocm_built", "operations act on the host's memory")

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
from ...train.run.session import rank, size
from ...train.run.subgroup import Subgroup, gather_texts
from .. import process_sets as sets
from ..builds import (
    ccl_built,
    cuda_built,
    ddl_built,
    gloo_built,
    gloo_enabled,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    rocm_built,
)
from ..reductions import HorovodInternalError

__all__ = [
    "ccl_built",
    "cuda_built",
    "ddl_built",
    "gloo_built",
    "gloo_enabled",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "rank",
    "rocm_built",
    "size",
]

# What the errors of groups say of members that do not run the same operation, now or before.
_DIFFER = "members disagree"
_LOSSES = (
    *(tf.errors.AbortedError, tf.errors.CancelledError, tf.errors.UnavailableError),
    *(tf.errors.DeadlineExceededError, ConnectionFailure, DeadlineExceeded, Cancelled),
)


_errors: Any = tf.errors


class Disagreement(_errors.FailedPreconditionError, _errors.InvalidArgumentError):  # type: ignore[misc]
    """Processes have called different operations, or with other names, shapes or types. All get it.

    It is what Horovod raises, and what TensorFlow raises where a function has the operation.
    """

    def __init__(self, node_def: Any, op: Any, message: str, *arguments: Any) -> None:
        code = tf.errors.FAILED_PRECONDITION
        tf.errors.OpError.__init__(self, node_def, op, message, code, *arguments)


@contextmanager
def internal_errors() -> Iterator[None]:
    """Raise HorovodInternalError where others are lost in the block, and Disagreement where they differ."""
    try:
        yield
    except Disagreement:
        raise
    except _LOSSES as error:
        raise HorovodInternalError(str(error)) from error
    except tf.errors.InvalidArgumentError as error:
        if _DIFFER in error.message:
            raise Disagreement(error.node_def, error.op, error.message) from error
        raise


_world = sets.World(rank, size)


class ProcessSet(sets.ProcessSet):
    """Some of the processes, which run operations together. add_process_set makes the group of them.

    Not thread-safe.
    """

    world = _world


class _Global(sets.Everybody, ProcessSet):
    """All processes."""


global_process_set: ProcessSet = _Global()
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
        if not _world.hosts:
            host = socket.gethostname()
            _world.hosts[:] = [host] if run.group is None else gather_texts(run, host)
        sets.add_all(process_sets, add_process_set, remove_process_set)


def shutdown() -> None:
    """Leave the other processes. init() joins them again, without the process sets."""
    groups = [each.members for each in _world.sets.values()]
    _world.forget()
    session.shutdown()
    for each in groups:
        if isinstance(each, Subgroup) and each in each.parts:
            each.parts.remove(each)


is_initialized = _world.is_initialized
local_rank = _world.local_rank
local_size = _world.local_size
cross_rank = _world.cross_rank
cross_size = _world.cross_size
is_homogeneous = _world.is_homogeneous


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


def _set_of(number: int) -> sets.ProcessSet:
    found = global_process_set if number == 0 else _world.sets.get(number)
    if found is None:
        raise UsageError(f"there is no process set {number}: add_process_set adds one")
    return found


def add_process_set(process_set: ProcessSet | Iterable[int]) -> ProcessSet:
    """Form the group of some processes, and return the set. All processes call it, also those not in it.

    Raises UsageError if ranks do not exist, or if there is a set of the same ones.
    """
    added = sets.made(ProcessSet, process_set)
    run = session.current()
    _world.check(added)
    _world.added += 1
    members: Any = run
    with internal_errors():
        if run.group is not None:
            assert run.device is not None
            name = f"rdmatensor.horovod.{_world.added} of {added.ranks}"
            run.group.barrier(timeout=run.timeout, detail=f"add_process_set: {name}")
            addresses = gather_texts(run, run.device.address)
            members = None
            if run.rank in added.ranks:
                members = Subgroup(run, added.ranks, addresses[added.ranks[0]], name)
    _world.add(added, members)
    return added


def remove_process_set(process_set: ProcessSet) -> bool:
    """Forget a set. All processes call it. Return whether it was there."""
    if process_set.process_set_id is None or process_set is global_process_set:
        return False
    members = _world.remove(process_set)
    if isinstance(members, Subgroup):
        members.leave()
        if members in members.parts:
            members.parts.remove(members)
    return True


def members_of(process_set: ProcessSet) -> Any:
    """Return the processes that run an operation together.

    Raises UsageError if this one is not among them, or if the set was not added.
    """
    run = session.current()
    run.check()
    return run if process_set is global_process_set else sets.members_of(process_set)


def start_timeline(file_path: str, mark_cycles: bool = False) -> None:
    """Write what operations do from now on to a file, as rdmatensor.train.trace does."""
    _timeline.enter_context(costs.trace(file_path))


def stop_timeline() -> None:
    """End what start_timeline began, and write the file."""
    _timeline.close()

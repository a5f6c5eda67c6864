# SPDX-License-Identifier: Apache-2.0
"""Tell which process this is, and form sets of processes, by Horovod's names."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist

from ...errors import Unsupported, UsageError
from ...torch import ProcessGroup
from ...train.run.roles import role_of
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
from .joining import REFUSED, Joining
from .meeting import Meeting

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
    "rocm_built",
]

_group: ProcessGroup | None = None
_meeting: Meeting | None = None
_joining: Joining | None = None
_created = False
# How often the processes that are left may fail to form a group.
_TRIES = 5
_profiler: Any = None
_profile_path = ""


class Disagreement(HorovodInternalError, UsageError):
    """Processes have called different operations, or with other names, shapes or types. All get it."""


@contextmanager
def internal_errors() -> Iterator[None]:
    """Raise HorovodInternalError where the operations of a process group fail within the block."""
    try:
        yield
    except dist.DistBackendError as error:
        if isinstance(error.__cause__, UsageError):
            raise Disagreement(str(error)) from error
        raise HorovodInternalError(str(error)) from error


def rank() -> int:
    """Return the number of this process, from 0. Raises UsageError before init()."""
    return everybody().rank()


def size() -> int:
    """Return how many processes there are. Raises UsageError before init()."""
    return everybody().size()


def everybody() -> ProcessGroup:
    """Return the process group of all processes. Raises UsageError before init()."""
    if _group is None:
        raise UsageError("this process has not joined the others: call init() first")
    return _group


def joining() -> Joining:
    """Return what processes tell those that have joined. Raises UsageError before init()."""
    everybody()
    assert _joining is not None
    return _joining


_world = sets.World(rank, size)
is_initialized = _world.is_initialized
local_rank = _world.local_rank
local_size = _world.local_size
cross_rank = _world.cross_rank
cross_size = _world.cross_size
is_homogeneous = _world.is_homogeneous


class ProcessSet(sets.ProcessSet):
    """Some of the processes, which run operations together. add_process_set makes the group of them.

    Not thread-safe.
    """

    world = _world


class _Global(sets.Everybody, ProcessSet):
    """All processes."""


global_process_set: ProcessSet = _Global()


def init(comm: Any = None, process_sets: Sequence[ProcessSet] | str | None = None) -> None:
    """Join the other processes. It blocks until all have called it; when called again, it only adds sets.

    It calls torch.distributed.init_process_group("rdmatensor"), with the rank that a launcher's variables
    tell; a program without a launcher is alone. If the program has called init_process_group before, its
    processes are those of Horovod, also with another backend. `process_sets` are added at once, if they are
    given as a list. Raises Unsupported for a `comm` that is not all processes, UsageError if a launcher's
    variables are incomplete, and HorovodInternalError if a process does not come.
    """
    with internal_errors():
        if not is_initialized():
            _enter(comm)
        sets.add_all(process_sets, add_process_set, remove_process_set)


def _enter(comm: Any = None, before: int | None = None) -> None:
    """Find the process group of all processes, or make it, and learn their hosts. See _join for `before`."""
    global _group, _joining, _created
    if not dist.is_initialized():
        _join(before)
        _created = True
    found = dist.group.WORLD._get_backend(torch.device("cpu"))
    if not isinstance(found, ProcessGroup):
        found = dist.new_group(backend="rdmatensor")
    _group = found
    try:
        _check(comm)
        _joining = Joining(found)
        hosts: list[Any] = [None] * found.size()
        dist.all_gather_object(hosts, socket.gethostname(), group=found)
    except BaseException:
        shutdown()
        raise
    _world.hosts[:] = hosts


def _join(before: int | None = None) -> None:
    """Make the default process group of torch of the processes that a launcher has started.

    `before` is the rank that this process had among them, if it was one of them.
    """
    global _meeting
    if _meeting is None:
        # TF_CONFIG describes a cluster of TensorFlow, and launchers for torch set the other variables.
        environment = {name: value for name, value in os.environ.items() if name != "TF_CONFIG"}
        _meeting = Meeting(role_of(environment, None, None, None))
    _meeting.meet(before)


def rejoin() -> None:
    """Leave the others after one was lost, and join those that are left and those that come anew.

    The process sets are forgotten. Raises UsageError if the program has called init_process_group itself, and
    HorovodInternalError if others do not come.
    """
    if not _created:
        raise UsageError(
            "the program has called init_process_group, so it has to form the process group anew itself: "
            "leave it to hvd.init()"
        )
    before = rank()
    shutdown()
    with internal_errors():
        for left in reversed(range(_TRIES)):
            try:
                _enter(before=before)
                return
            except dist.DistError:  # another one was lost meanwhile
                shutdown()
                if dist.is_initialized():
                    dist.destroy_process_group()
                if not left:
                    raise


def _check(comm: Any) -> None:
    if comm is not None and not (isinstance(comm, list) and comm == list(range(size()))):
        raise Unsupported(
            "init(comm=...): processes are those that a launcher starts: start these only, and form sets "
            "of them with add_process_set",
            "UNSUPPORTED",
        )


def shutdown() -> None:
    """Leave the other processes. init() joins them again, without the process sets.

    A process group that the program has made itself stays.
    """
    global _group, _joining, _created
    groups = [each.members for each in _world.sets.values() if each.members is not None]
    _world.forget()
    group, _group = _group, None
    if _joining is not None:
        _joining.close()
        _joining = None
    if group is None or not dist.is_initialized():
        return
    if _created:
        _created = False
        dist.destroy_process_group()
        return
    for each in groups:
        dist.destroy_process_group(each)
    if group is not dist.group.WORLD:
        dist.destroy_process_group(group)


def add_process_set(process_set: ProcessSet | Iterable[int]) -> ProcessSet:
    """Form the group of some processes, and return the set. All processes call it, also those not in it.

    Raises UsageError if ranks do not exist, or if there is a set of the same ones.
    """
    added = sets.made(ProcessSet, process_set)
    group = everybody()
    _world.check(added)
    number = _world.added + 1
    text = f"add_process_set {number}: {added.ranks}"
    with internal_errors():
        with group.comparing(text):
            (work,) = joining().run(text, [REFUSED], lambda: [dist.barrier(group, async_op=True)])
            work.wait()
        _world.added = number
        ranks = dist.get_process_group_ranks(group)
        members = dist.new_group([ranks[each] for each in added.ranks], backend="rdmatensor")
    _world.add(added, members if added.included() else None)
    return added


def remove_process_set(process_set: ProcessSet) -> bool:
    """Forget a set. All processes call it. Return whether it was there."""
    if process_set.process_set_id is None or process_set is global_process_set:
        return False
    members = _world.remove(process_set)
    if members is not None:
        dist.destroy_process_group(members)
    return True


def members_of(process_set: sets.ProcessSet) -> ProcessGroup:
    """Return the process group that runs the operations of a set.

    Raises UsageError if this process is not in it, or if it was not added.
    """
    if process_set is global_process_set:
        return everybody()
    found: ProcessGroup = sets.members_of(process_set)
    return found


def start_timeline(file_path: str, mark_cycles: bool = False) -> None:
    """Record what this process does from now on, in Chrome's trace format. stop_timeline() writes the file.

    torch's profiler records it, with an event for each operation, such as "rdmatensor:all_reduce". Raises
    UsageError if a timeline has been started already. `mark_cycles` has no effect.
    """
    global _profiler, _profile_path
    if _profiler is not None:
        raise UsageError(f"a timeline is being recorded for {_profile_path}: call stop_timeline()")
    _profile_path = file_path
    _profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])
    _profiler.start()


def stop_timeline() -> None:
    """End what start_timeline began, and write the file."""
    global _profiler
    profiler, _profiler = _profiler, None
    if profiler is not None:
        profiler.stop()
        profiler.export_chrome_trace(_profile_path)

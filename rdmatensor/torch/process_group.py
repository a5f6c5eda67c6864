# SPDX-License-Identifier: Apache-2.0
"""The process group: torch's collective and point-to-point operations on a Group."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

from ..errors import RdmaError
from ..group import Group
from .arrays import dense, flat, target
from .calls import Calls, Part
from .devices import OtherDevices, device_of, routed
from .identity import Identity, seconds
from .monitor import monitored_barrier
from .moves import (
    all_gather,
    all_gather_list,
    all_to_all,
    all_to_all_list,
    gather,
    gather_single,
    scatter,
)
from .options import check_parts, one, options, several
from .reductions import all_reduce, reduce, reduce_scatter, reduce_scatter_list
from .session import Session, join
from .sparse import sum_sparse
from .window import Window
from .work import Work, failure

Tensors: TypeAlias = Sequence[torch.Tensor]
# A tensor or a list of one; a list of tensors or a list of one such list.
Given: TypeAlias = Tensors | torch.Tensor
Nested: TypeAlias = Sequence[Tensors] | Tensors


def create(given: Any, choices: Any = None) -> ProcessGroup:
    """Return the process group that torch.distributed asks for. Blocks until all members have joined."""
    ranks, world = list(given.global_ranks_in_group), dist.group.WORLD
    parent = world._get_backend(torch.device("cpu")) if ranks and world is not None else None
    made = ProcessGroup(
        given.store,
        given.group_rank,
        given.group_size,
        given.timeout,
        given.group_id,
        ranks,
        parent if isinstance(parent, ProcessGroup) else None,
    )
    made._others = OtherDevices(given, choices)
    return made


class ProcessGroup(Identity, c10d.ProcessGroup):  # type: ignore[misc]
    """A process group of torch.distributed whose operations a Group runs. Create it by init_process_group.

    Methods are those of torch.distributed.ProcessGroup, by new and old names, and take the same arguments.
    Calls with `asyncOp` False have ended when they return; other ones return at once. All return a Work.
    Members call operations in the same order; send and receive match by rank and tag. Tensors are on the
    CPU, of any dtype and strides. A member that is gone, or calls something else, ends the operation at the
    others with DistBackendError, a RuntimeError that names it. Any thread may use the process group.
    """

    def __init__(
        self,
        store: Any,
        rank: int,
        size: int,
        timeout: timedelta,
        name: str = "",
        ranks: Sequence[int] = (),
        parent: ProcessGroup | None = None,
    ) -> None:
        """Join the members that have the same `store`, or those of `parent` that have these ranks.

        `ranks` are those of the members among all processes; empty if all processes are members.
        """
        c10d.ProcessGroup.__init__(self, rank, size)
        Identity.__init__(self, store, name)
        self._rank, self._size = rank, size
        self._ranks = list(ranks or range(size))
        self._barriers = 0
        self._splits: Counter[str] = Counter()
        limit = seconds(timeout)
        session: Session
        if parent is None:
            session, group = join(store, rank, size, name, list(ranks), limit)
            self._unique = group.name
        else:
            session, group = parent._session.share(), parent._split(name, ranks, limit)
            self._unique = f"{parent._unique}/{group.name}"
        self._session: Session = session
        self._calls = Calls(group, name, limit, ranks)
        self._windows: weakref.WeakSet[Window] = weakref.WeakSet()
        self._end = weakref.finalize(self, _close, group, session)
        self._end.atexit = False  # then devices are closed, and their groups with them

    @routed
    def allreduce(
        self, tensors: Given, opts: Any = None, timeout: timedelta | None = None, op: Any = None
    ) -> Work:
        """Combine the tensors of all members, in place."""
        opts = options(c10d.AllreduceOptions, opts, timeout, reduceOp=op)
        tensor = one("all_reduce", tensors)
        if tensor.is_sparse:
            return self._all_reduce_sparse(tensor, opts)
        return self._calls.run(
            "all_reduce", opts, [tensor], [all_reduce(tensor, opts.reduceOp)], [tensor]
        )

    allreduce_sparse = allreduce

    @routed
    def allreduce_coalesced(self, tensors: Tensors, opts: Any = None) -> Work:
        """Combine each of several tensors, in place."""
        opts = options(c10d.AllreduceCoalescedOptions, opts)
        given = list(tensors)
        parts = [all_reduce(each, opts.reduceOp) for each in given]
        return self._calls.run("all_reduce", opts, given, parts, given)

    def _all_reduce_sparse(self, tensor: torch.Tensor, opts: Any) -> Work:
        if opts.reduceOp != dist.ReduceOp.SUM:
            raise RuntimeError("sparse tensors can only be added up")
        parts = sum_sparse(self._calls, tensor, opts)
        return self._calls.run("sparse_all_reduce", opts, [tensor], parts)

    @routed
    def reduce(
        self,
        tensors: Given,
        opts: Any = None,
        op: Any = None,
        timeout: timedelta | None = None,
        root: int | None = None,
    ) -> Work:
        """Combine the tensors of all members at the root. Other members' tensors stay as they are."""
        opts = options(c10d.ReduceOptions, opts, timeout, rootRank=root, reduceOp=op)
        tensor = one("reduce", tensors)
        part = reduce(tensor, opts.reduceOp, opts.rootRank, self._rank)
        return self._calls.run("reduce", opts, [tensor], [part], [tensor])

    @routed
    def reduce_scatter(
        self,
        output_tensors: Given,
        input_tensors: Nested,
        opts: Any = None,
        timeout: timedelta | None = None,
        op: Any = None,
    ) -> Work:
        """Combine the lists of all members, tensor by tensor, and return the tensor of this rank."""
        what = "reduce_scatter"
        opts = options(c10d.ReduceScatterOptions, opts, timeout, reduceOp=op)
        out, given = one(what, output_tensors), several(what, input_tensors)
        check_parts(what, given, self._size, out)
        part = reduce_scatter_list(out, given, opts.reduceOp)
        return self._calls.run(what, opts, [out], [part], given)

    @routed
    def reduce_scatter_single(
        self,
        output: torch.Tensor,
        input: torch.Tensor,  # noqa: A002
        opts: Any = None,
    ) -> Work:
        """Combine the tensors of all members, and return part `rank` of their first axis."""
        opts = options(c10d.ReduceScatterOptions, opts)
        part = reduce_scatter(output, input, opts.reduceOp, self._size)
        return self._calls.run("reduce_scatter_tensor", opts, output, [part], [input])

    _reduce_scatter_base = reduce_scatter_single

    @routed
    def reduce_scatter_single_coalesced(
        self, outputs: Tensors, inputs: Tensors, opts: Any = None
    ) -> Work:
        """Do what reduce_scatter_single does, for several tensors."""
        opts = options(c10d.ReduceScatterOptions, opts)
        outs, given = list(outputs), list(inputs)
        parts = [
            reduce_scatter(out, tensor, opts.reduceOp, self._size)
            for out, tensor in zip(outs, given, strict=True)
        ]
        return self._calls.run("reduce_scatter_tensor_coalesced", opts, outs, parts, given)

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    @routed
    def broadcast(
        self,
        tensors: Given,
        opts: Any = None,
        timeout: timedelta | None = None,
        root: int | None = None,
    ) -> Work:
        """Copy the tensor of the root into those of all other members."""
        opts = options(c10d.BroadcastOptions, opts, timeout, rootRank=root)
        tensor = one("broadcast", tensors)
        made, finish = target(tensor)
        part = Part("broadcast", {"array": flat(made), "root": opts.rootRank}, finish)
        return self._calls.run("broadcast", opts, [tensor], [part], [tensor])

    @routed
    def allgather(
        self,
        output_tensors: Nested,
        input_tensors: Given,
        opts: Any = None,
        timeout: timedelta | None = None,
    ) -> Work:
        """Copy the tensors of all members into a list of tensors, in the order of ranks."""
        what = "all_gather"
        opts = options(c10d.AllgatherOptions, opts, timeout)
        outs, tensor = several(what, output_tensors), one(what, input_tensors)
        part = all_gather_list(outs, tensor, self._size)
        return self._calls.run(what, opts, [outs], [part], [tensor])

    @routed
    def allgather_coalesced(
        self, output_lists: Sequence[Tensors], inputs: Tensors, opts: Any = None
    ) -> Work:
        """Copy several tensors of each member: `output_lists` has those of each rank."""
        opts = options(c10d.AllgatherOptions, opts)
        what, given = "all_gather", list(inputs)
        outs = [list(each) for each in output_lists]
        if len(outs) != self._size or any(len(each) != len(given) for each in outs):
            raise RuntimeError(f"{what} needs a list of {len(given)} tensors for each rank")
        parts = [
            all_gather_list([each[at] for each in outs], tensor, self._size)
            for at, tensor in enumerate(given)
        ]
        return self._calls.run(what, opts, outs, parts, given)

    @routed
    def all_gather_single(
        self,
        output: torch.Tensor,
        input: torch.Tensor,  # noqa: A002
        opts: Any = None,
    ) -> Work:
        """Join the tensors of all members along the first axis, in the order of ranks."""
        opts = options(c10d.AllgatherOptions, opts)
        part = all_gather(output, input, self._size)
        return self._calls.run("all_gather_into_tensor", opts, output, [part], [input])

    _allgather_base = all_gather_single

    @routed
    def all_gather_single_coalesced(
        self, outputs: Tensors, inputs: Tensors, opts: Any = None
    ) -> Work:
        """Do what all_gather_single does, for several tensors."""
        opts = options(c10d.AllgatherOptions, opts)
        outs, given = list(outputs), list(inputs)
        parts = [
            all_gather(out, tensor, self._size) for out, tensor in zip(outs, given, strict=True)
        ]
        return self._calls.run("all_gather_into_tensor_coalesced", opts, outs, parts, given)

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    @routed
    def gather(
        self,
        output_tensors: Nested,
        input_tensors: Given,
        opts: Any = None,
        timeout: timedelta | None = None,
        root: int | None = None,
    ) -> Work:
        """Copy the tensors of all members into a list of tensors at the root, in the order of ranks."""
        what = "gather"
        opts = options(c10d.GatherOptions, opts, timeout, rootRank=root)
        outs, tensor = several(what, output_tensors), one(what, input_tensors)
        part = gather(outs, tensor, self._size, opts.rootRank, self._rank)
        return self._calls.run(what, opts, [outs], [part], [tensor])

    @routed
    def gather_single(
        self,
        output: torch.Tensor,
        input: torch.Tensor,  # noqa: A002
        opts: Any = None,
    ) -> Work:
        """Join the tensors of all members along the first axis at the root; others' `output` is not used."""
        opts = options(c10d.GatherOptions, opts)
        part = gather_single(output, input, self._size, opts.rootRank, self._rank)
        return self._calls.run("gather_into_tensor", opts, output, [part], [input])

    gather_into_tensor = gather_single

    @routed
    def scatter(
        self,
        output_tensors: Given,
        input_tensors: Nested,
        opts: Any = None,
        timeout: timedelta | None = None,
        root: int | None = None,
    ) -> Work:
        """Copy each of the root's list of tensors to the member of its rank."""
        what = "scatter"
        opts = options(c10d.ScatterOptions, opts, timeout, rootRank=root)
        out, given = one(what, output_tensors), several(what, input_tensors)
        part = scatter(out, given, self._size, opts.rootRank, self._rank)
        return self._calls.run(what, opts, [out], [part], given or [out])

    @routed
    def all_to_all_single(
        self,
        output: torch.Tensor,
        input: torch.Tensor,  # noqa: A002
        output_split_sizes: Sequence[int] = (),
        input_split_sizes: Sequence[int] = (),
        opts: Any = None,
    ) -> Work:
        """Exchange parts of the first axis: part `i` goes to rank `i`. Without sizes, all parts are equal."""
        opts = options(c10d.AllToAllOptions, opts)
        part = all_to_all(output, input, output_split_sizes, input_split_sizes, self._size)
        return self._calls.run("all_to_all", opts, output, [part], [input])

    alltoall_base = all_to_all_single

    @routed
    def alltoall(
        self,
        output_tensors: Tensors,
        input_tensors: Tensors,
        opts: Any = None,
        timeout: timedelta | None = None,
    ) -> Work:
        """Exchange lists of tensors: tensor `i` goes to rank `i`."""
        opts = options(c10d.AllToAllOptions, opts, timeout)
        outs, given = list(output_tensors), list(input_tensors)
        part = all_to_all_list(outs, given, self._size)
        return self._calls.run("all_to_all", opts, outs, [part], given)

    def barrier(self, opts: Any = None, timeout: timedelta | None = None) -> Work:
        """Wait until all members have called it, on the device that `opts` names, if it has a backend."""
        opts = options(c10d.BarrierOptions, opts, timeout)
        device = device_of(opts.device)
        if device in self._other_types():
            return self._for_device(device).barrier(opts)  # type: ignore[no-any-return]
        return self._calls.run("barrier", opts, [], [Part("barrier", {})])

    def monitored_barrier(self, timeout: Any = None, wait_all_ranks: bool = False) -> None:
        """Wait until all members have called it. Raises RuntimeError, which names who has not.

        With `wait_all_ranks`, rank 0 names all that are missing, else the first. It works without the
        connections of the group.
        """
        given = getattr(timeout, "timeout", timeout)  # torch 2.14 passes options
        limit = timedelta(seconds=self._calls.limit) if given is None else given
        number, self._barriers = self._barriers, self._barriers + 1
        store = dist.PrefixStore(self._unique, self._store)
        monitored_barrier(store, self._rank, self._size, number, limit, wait_all_ranks)

    @routed
    def send(self, tensors: Given, dst: int, tag: int = 0) -> Work:
        """Send a tensor to a rank."""
        tensor = one("send", tensors)
        part = Part("send", {"array": flat(dense(tensor)), "root": dst, "tag": tag})
        return self._calls.message("send", tensor, part)

    @routed
    def recv(self, tensors: Given, src: int, tag: int = 0) -> Work:
        """Receive a tensor from a rank."""
        return self._receive("recv", one("recv", tensors), src, tag)

    @routed
    def recv_anysource(self, tensors: Given, tag: int = 0) -> Work:
        """Receive a tensor from any rank: source_rank() of the result names it."""
        return self._receive("recvAnySource", one("recv", tensors), None, tag)

    def _receive(self, what: str, tensor: torch.Tensor, source: int | None, tag: int) -> Work:
        to, finish = target(tensor)
        part = Part("receive", {"array": flat(to), "root": source, "tag": tag}, finish)
        return self._calls.message(what, tensor, part)

    @property
    def supports_window(self) -> bool:
        """Whether new_window() makes windows."""
        return True

    def new_window(self, tensor: torch.Tensor | None = None) -> Window:
        """Return a window for one-sided operations, with this tensor if one is given: see Window.

        All members call it in the same order, with a tensor or without.
        """
        window = Window(self)
        if tensor is not None:
            window.tensor_register(tensor)
        return window

    def start_coalescing(self, device: Any = None) -> None:
        """Start operations without waiting for them, until end_coalescing()."""
        kind = device_of(device)
        if kind in self._other_types():
            self._for_device(kind)._start_coalescing(device)
            return
        self._calls.start_coalescing()

    _start_coalescing = start_coalescing

    def end_coalescing(self, device: Any = None) -> Work:
        """Return one Work for all operations since start_coalescing()."""
        kind = device_of(device)
        if kind in self._other_types():
            return self._for_device(kind)._end_coalescing(device)  # type: ignore[no-any-return]
        return self._calls.end_coalescing()

    _end_coalescing = end_coalescing

    def _set_sequence_number_for_group(self) -> None:
        """Do nothing: numbers start at 0 at every member."""

    def _get_sequence_number_for_group(self) -> int:
        return self._calls.sequence

    def set_timeout(self, timeout: timedelta) -> None:
        """Set the time-out of operations that begin later and have none of their own."""
        self._calls.limit = seconds(timeout)
        for each in self._other_groups():
            each.set_timeout(timeout)

    _set_default_timeout = set_timeout

    def split_group(
        self,
        new_ranks: Sequence[int],
        timeout: timedelta | None = None,
        opts: Any = None,
        group_name: str | None = None,
        group_desc: str | None = None,
        device_types: Any = None,
    ) -> ProcessGroup | None:
        """Return a process group of the members `new_ranks`, over the same connections; None to others.

        Only its members need call it. `opts` and `device_types` are not used.
        """
        if self._rank not in new_ranks:
            return None
        limit = timedelta(seconds=self._calls.limit) if timeout is None else timeout
        name = group_name or f"{self._name}:split"
        rank, size = list(new_ranks).index(self._rank), len(new_ranks)
        ranks = [self._ranks[each] for each in new_ranks]
        made = ProcessGroup(self._store, rank, size, limit, name, ranks, self)
        made.setGroupDesc(group_desc or "")
        return made

    def _split(self, name: str, ranks: Sequence[int], limit: float) -> Group:
        """Return a group of members by their ranks among all processes. Names may come again."""
        self._splits[name] += 1
        unique = f"{name[:40]} {self._splits[name]}"
        within = [self._ranks.index(each) for each in ranks]
        try:
            return self._calls.group.split(within, unique, limit)
        except RdmaError as error:
            raise failure(f"splitting off process group {name!r}", error) from error

    def abort(self) -> None:
        """End what runs or begins later, here and at the other members, with an error."""
        self._calls.abort(self._rank)
        for each in self._other_groups():
            each.abort()

    def shutdown(self) -> None:
        """Leave the process group: operations under way fail, here and at the other members."""
        for window in list(self._windows):
            window._free()
        for each in self._other_groups():
            each.shutdown()
        self._end()

    def __repr__(self) -> str:
        return f"<ProcessGroup rdmatensor {self._name!r}, rank {self._rank} of {self._size}>"


def _close(group: Group, session: Session) -> None:
    group.close()
    session.leave()

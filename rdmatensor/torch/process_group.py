# SPDX-License-Identifier: Apache-2.0
"""The process group: torch's collective and point-to-point operations on a Group."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

from ..group import Group
from .arrays import assign, dense, flat, joined, spread, target
from .calls import Calls
from .identity import Identity, seconds
from .monitor import monitored_barrier
from .options import check_dtype, check_parts, check_size, one, options, several
from .reductions import in_place, into
from .session import Session, join
from .sparse import SparseSum
from .work import Work

Tensors: TypeAlias = Sequence[torch.Tensor]
# A tensor or a list of one; a list of tensors or a list of one such list.
Given: TypeAlias = Tensors | torch.Tensor
Nested: TypeAlias = Sequence[Tensors] | Tensors

# From torch 2.14 on, a process group consists of backends, which may be Python classes. Before, a Python
# class is the whole process group.
_Base: Any = dist.Backend if torch.__version__ >= (2, 14) else dist.ProcessGroup


def create(given: Any, _options: Any = None) -> ProcessGroup:
    """Return the process group that torch.distributed asks for. Blocks until all members have joined."""
    return ProcessGroup(
        given.store,
        given.group_rank,
        given.group_size,
        given.timeout,
        given.group_id,
        list(given.global_ranks_in_group),
    )


class ProcessGroup(Identity, _Base):  # type: ignore[misc]
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
    ) -> None:
        _Base.__init__(self, rank, size)
        Identity.__init__(self, store, name)
        self._rank, self._size = rank, size
        self._barriers = 0
        limit = seconds(timeout)
        session, group = join(store, rank, size, name, list(ranks), limit)
        self._calls = Calls(group, name, limit)
        self._end = weakref.finalize(self, _close, group, session)
        self._end.atexit = False  # then devices are closed, and their groups with them

    def allreduce(
        self, tensors: Given, opts: Any = None, timeout: timedelta | None = None, op: Any = None
    ) -> Work:
        """Combine the tensors of all members, in place."""
        opts = options(c10d.AllreduceOptions, opts, timeout, reduceOp=op)
        return self._all_reduce("all_reduce", one("all_reduce", tensors), opts)

    allreduce_sparse = allreduce

    def allreduce_coalesced(self, tensors: Tensors, opts: Any = None) -> Work:
        """Combine each of several tensors, in place."""
        opts = options(c10d.AllreduceCoalescedOptions, opts)
        what = "all_reduce_coalesced"
        works = [self._all_reduce(what, each, opts) for each in tensors]
        return self._calls.together(what, works, list(tensors))

    def _all_reduce(self, what: str, tensor: torch.Tensor, opts: Any) -> Work:
        if tensor.is_sparse:
            return self._all_reduce_sparse(tensor, opts)
        made = in_place(tensor, opts.reduceOp)
        array = flat(made.tensor)
        return self._calls.run(
            what,
            "all_reduce",
            opts,
            [tensor],
            made.finish,
            [tensor],
            array=array,
            out=array,
            **made.how,
        )

    def _all_reduce_sparse(self, tensor: torch.Tensor, opts: Any) -> Work:
        if opts.reduceOp != dist.ReduceOp.SUM:
            raise RuntimeError("sparse tensors can only be added up")
        calls, limit = self._calls, self._calls.limit_of(opts)
        sums = SparseSum(calls.group, tensor, limit)
        calls.sequence += 1
        waits = not opts.asyncOp
        return calls.start(
            "sparse_all_reduce", [tensor], sums.start, sums.finish, [tensor], limit, waits
        )

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
        is_root = self._rank == opts.rootRank
        made = in_place(tensor if is_root else tensor.detach().clone(), opts.reduceOp)
        array = flat(made.tensor)
        finish = made.finish if is_root else None
        return self._calls.run(
            "reduce",
            "all_reduce",
            opts,
            [tensor],
            finish,
            [tensor],
            array=array,
            out=array,
            **made.how,
        )

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
        out, parts = one(what, output_tensors), several(what, input_tensors)
        check_parts(what, parts, self._size, out)
        return self._reduce_scatter(what, out, joined(parts), opts, [out])

    def reduce_scatter_single(
        self,
        output: torch.Tensor,
        input: torch.Tensor,  # noqa: A002
        opts: Any = None,
    ) -> Work:
        """Combine the tensors of all members, and return part `rank` of their first axis."""
        opts = options(c10d.ReduceScatterOptions, opts)
        return self._reduce_scatter("reduce_scatter_tensor", output, input, opts, output)

    _reduce_scatter_base = reduce_scatter_single

    def reduce_scatter_single_coalesced(
        self, outputs: Tensors, inputs: Tensors, opts: Any = None
    ) -> Work:
        """Do what reduce_scatter_single does, for several tensors."""
        opts = options(c10d.ReduceScatterOptions, opts)
        what = "reduce_scatter_tensor_coalesced"
        works = [
            self._reduce_scatter(what, out, tensor, opts, out)
            for out, tensor in zip(outputs, inputs, strict=True)
        ]
        return self._calls.together(what, works, list(outputs))

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def _reduce_scatter(
        self, what: str, out: torch.Tensor, tensor: torch.Tensor, opts: Any, value: Any
    ) -> Work:
        check_size(what, tensor, out.numel() * self._size)
        check_dtype(what, out, tensor)
        to, made = into(out, tensor, opts.reduceOp)
        source = flat(made.tensor)
        return self._calls.run(
            what,
            "reduce_scatter",
            opts,
            value,
            made.finish,
            [tensor],
            array=source,
            out=flat(to),
            **made.how,
        )

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
        if opts.rootRank == self._rank:
            finish = None
        return self._calls.run(
            "broadcast",
            "broadcast",
            opts,
            [tensor],
            finish,
            [tensor],
            array=flat(made),
            root=opts.rootRank,
        )

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
        return self._all_gather_list(what, outs, tensor, opts)

    def allgather_coalesced(
        self, output_lists: Sequence[Tensors], inputs: Tensors, opts: Any = None
    ) -> Work:
        """Copy several tensors of each member: `output_lists` has those of each rank."""
        opts = options(c10d.AllgatherOptions, opts)
        what = "all_gather_coalesced"
        works = [
            self._all_gather_list(what, [outs[at] for outs in output_lists], tensor, opts)
            for at, tensor in enumerate(inputs)
        ]
        return self._calls.together(what, works, [list(outs) for outs in output_lists])

    def _all_gather_list(self, what: str, outs: Tensors, tensor: torch.Tensor, opts: Any) -> Work:
        check_parts(what, outs, self._size, tensor)
        buffer = torch.empty(self._size * tensor.numel(), dtype=tensor.dtype)
        return self._calls.run(
            what,
            "all_gather",
            opts,
            [list(outs)],
            lambda: spread(buffer, outs),
            [tensor],
            array=flat(dense(tensor)),
            out=flat(buffer),
        )

    def all_gather_single(
        self,
        output: torch.Tensor,
        input: torch.Tensor,  # noqa: A002
        opts: Any = None,
    ) -> Work:
        """Join the tensors of all members along the first axis, in the order of ranks."""
        opts = options(c10d.AllgatherOptions, opts)
        return self._all_gather("all_gather_into_tensor", output, input, opts)

    _allgather_base = all_gather_single

    def all_gather_single_coalesced(
        self, outputs: Tensors, inputs: Tensors, opts: Any = None
    ) -> Work:
        """Do what all_gather_single does, for several tensors."""
        opts = options(c10d.AllgatherOptions, opts)
        what = "all_gather_into_tensor_coalesced"
        works = [
            self._all_gather(what, out, tensor, opts)
            for out, tensor in zip(outputs, inputs, strict=True)
        ]
        return self._calls.together(what, works, list(outputs))

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def _all_gather(self, what: str, out: torch.Tensor, tensor: torch.Tensor, opts: Any) -> Work:
        check_size(what, out, tensor.numel() * self._size)
        check_dtype(what, out, tensor)
        to, finish = target(out)
        source = flat(dense(tensor))
        return self._calls.run(
            what, "all_gather", opts, out, finish, [tensor], array=source, out=flat(to)
        )

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
        buffer = torch.empty(self._size * tensor.numel(), dtype=tensor.dtype)
        if self._rank == opts.rootRank:
            check_parts(what, outs, self._size, tensor)
        return self._calls.run(
            what,
            "all_gather",
            opts,
            [outs],
            lambda: spread(buffer, outs),
            [tensor],
            array=flat(dense(tensor)),
            out=flat(buffer),
        )

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
        out, parts = one(what, output_tensors), several(what, input_tensors)
        if self._rank == opts.rootRank:
            check_parts(what, parts, self._size, out)
            buffer = joined(parts)
        else:
            buffer = torch.empty(self._size * out.numel(), dtype=out.dtype)
        mine = buffer.view(self._size, -1)[self._rank]
        array = flat(buffer)
        return self._calls.run(
            what,
            "broadcast",
            opts,
            [out],
            lambda: assign(out, mine),
            [out],
            array=array,
            root=opts.rootRank,
        )

    def all_to_all_single(
        self,
        output: torch.Tensor,
        input: torch.Tensor,  # noqa: A002
        output_split_sizes: Sequence[int] = (),
        input_split_sizes: Sequence[int] = (),
        opts: Any = None,
    ) -> Work:
        """Exchange parts of the first axis: part `i` goes to rank `i`. Without sizes, all parts are equal."""
        what = "all_to_all"
        opts = options(c10d.AllToAllOptions, opts)
        check_dtype(what, output, input)
        to, finish = target(output)
        source = dense(input)
        return self._calls.run(
            what, "all_to_all", opts, output, finish, [], array=flat(source), out=flat(to)
        )

    alltoall_base = all_to_all_single

    def alltoall(
        self,
        output_tensors: Tensors,
        input_tensors: Tensors,
        opts: Any = None,
        timeout: timedelta | None = None,
    ) -> Work:
        """Exchange lists of tensors: tensor `i` goes to rank `i`."""
        what = "all_to_all"
        opts = options(c10d.AllToAllOptions, opts, timeout)
        outs, parts = list(output_tensors), list(input_tensors)
        check_parts(what, parts, self._size, parts[0])
        check_parts(what, outs, self._size, parts[0])
        source = joined(parts)
        to = source.new_empty(sum(each.numel() for each in outs))
        return self._calls.run(
            what,
            "all_to_all",
            opts,
            outs,
            lambda: spread(to, outs),
            [],
            array=flat(source),
            out=flat(to),
        )

    def barrier(self, opts: Any = None, timeout: timedelta | None = None) -> Work:
        """Wait until all members have called it."""
        opts = options(c10d.BarrierOptions, opts, timeout)
        return self._calls.run("barrier", "barrier", opts, [])

    def monitored_barrier(self, timeout: Any = None, wait_all_ranks: bool = False) -> None:
        """Wait until all members have called it. Raises RuntimeError, which names who has not.

        With `wait_all_ranks`, rank 0 names all that are missing, else the first. It works without the
        connections of the group.
        """
        given = getattr(timeout, "timeout", timeout)  # torch 2.14 passes options
        limit = timedelta(seconds=self._calls.limit) if given is None else given
        number, self._barriers = self._barriers, self._barriers + 1
        monitored_barrier(self._store, self._rank, self._size, number, limit, wait_all_ranks)

    def send(self, tensors: Given, dst: int, tag: int = 0) -> Work:
        """Send a tensor to a rank."""
        tensor = one("send", tensors)
        return self._calls.message("send", tensor, array=flat(dense(tensor)), root=dst, tag=tag)

    def recv(self, tensors: Given, src: int, tag: int = 0) -> Work:
        """Receive a tensor from a rank."""
        return self._receive("recv", one("recv", tensors), src, tag)

    def recv_anysource(self, tensors: Given, tag: int = 0) -> Work:
        """Receive a tensor from any rank: source_rank() of the result names it."""
        return self._receive("recvAnySource", one("recv", tensors), -1, tag)

    def _receive(self, what: str, tensor: torch.Tensor, source: int, tag: int) -> Work:
        to, finish = target(tensor)
        return self._calls.message(what, tensor, finish, array=flat(to), root=source, tag=tag)

    def start_coalescing(self, _device: Any = None) -> None:
        """Start operations without waiting for them, until end_coalescing()."""
        self._calls.start_coalescing()

    _start_coalescing = start_coalescing

    def end_coalescing(self, _device: Any = None) -> Work:
        """Return one Work for all operations since start_coalescing()."""
        return self._calls.end_coalescing()

    _end_coalescing = end_coalescing

    def _set_sequence_number_for_group(self) -> None:
        """Do nothing: numbers start at 0 at every member."""

    def _get_sequence_number_for_group(self) -> int:
        return self._calls.sequence

    def set_timeout(self, timeout: timedelta) -> None:
        """Set the time-out of operations that begin later and have none of their own."""
        self._calls.limit = seconds(timeout)

    _set_default_timeout = set_timeout

    def abort(self) -> None:
        """End what runs or begins later, here and at the other members, with an error."""
        self._calls.abort(self._rank)

    def shutdown(self) -> None:
        """Leave the process group: operations under way fail, here and at the other members."""
        self._end()

    def __repr__(self) -> str:
        return f"<ProcessGroup rdmatensor {self._name!r}, rank {self._rank} of {self._size}>"


def _close(group: Group, session: Session) -> None:
    group.close()
    session.leave()

# SPDX-License-Identifier: Apache-2.0
"""torch's collective and point-to-point operations, on a Group."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

from .arrays import dense, flat, target
from .calls import Calls, Part
from .devices import device_of, routed
from .identity import Identity
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
from .reductions import all_reduce, all_reduce_many, reduce, reduce_scatter, reduce_scatter_list
from .sparse import sum_sparse
from .work import Work

Tensors: TypeAlias = Sequence[torch.Tensor]
# A tensor or a list of one; a list of tensors or a list of one such list.
Given: TypeAlias = Tensors | torch.Tensor
Nested: TypeAlias = Sequence[Tensors] | Tensors


class Operations(Identity):
    """The operations of a process group. Tensors on other devices go to the backend of their device."""

    _rank: int
    _size: int

    def __init__(self, store: Any, name: str) -> None:
        super().__init__(store, name)
        self._configured: Calls | None = None

    @property
    def _calls(self) -> Calls:
        calls = self._configured
        if calls is None:
            raise RuntimeError(f"process group {self._name!r} has no members: call reconfigure()")
        return calls

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
        parts = all_reduce_many(given, opts.reduceOp)
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

    @routed
    def send(self, tensors: Given, dst: int, tag: int = 0) -> Work:
        """Send a tensor to a rank."""
        tensor = one("send", tensors)
        return self._calls.message("send", tensor, dense(tensor), dst, tag)

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
        return self._calls.message(what, tensor, to, source, tag, finish, receives=True)

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

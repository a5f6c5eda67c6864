# SPDX-License-Identifier: Apache-2.0
"""Windows: memory of each member of a process group that the others write into, one-sidedly."""

from __future__ import annotations

import json
import os
import threading
import weakref
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch._C import _distributed_c10d as c10d

from .._api.region import Region, RemoteRegion
from .._api.remote import Capability, RemoteDevice
from .._api.transfer import Transfer
from ..errors import RdmaError
from .arrays import assign, dense, flat, is_dense
from .mailbox import Box, number_for
from .work import FutureQueue, Work

if TYPE_CHECKING:
    from ..group import Group
    from .process_group import ProcessGroup


__all__ = ["Window"]


class _Member(NamedTuple):
    """The memory that a member has registered, or the `error` that prevented it."""

    address: str = ""
    name: str = ""
    key: int = 0
    box: int = 0
    dtype: str = ""
    shape: tuple[int, ...] = ()
    elements: int = 0
    error: str = ""


class Window:
    """A tensor of each member, which the others write into while it does something else.

    ProcessGroup.new_window returns it; methods are those of torch's Window, and take the same arguments.
    put() writes and then signals, signal() only signals, and wait_signal() waits for one signal of a member.
    A signal comes after all that its sender has put before. Sizes and offsets are in elements. With
    `async_op`, calls return a Work at once; else they have ended when they return, and return one too.
    `opts` may have a time-out; without, it is that of the process group.

    Tensors are on the CPU, contiguous, and from rdmatensor.torch.empty. Members' tensors may differ in size
    and dtype. Raises RuntimeError for a wrong call, and DistBackendError, which names the member, if one is
    gone or time is up; then register anew, in a process group of the members that are left. Any thread may
    use a window.
    """

    def __init__(self, owner: ProcessGroup) -> None:
        self._owner = owner
        self._made: _Registration | None = None
        self._end: Any = None

    def tensor_register(self, tensor: torch.Tensor, owning: bool = True) -> None:
        """Let the other members write into a tensor. All members call it, and it blocks until all have.

        The window keeps the memory alive until tensor_deregister(), also if `owning` is False. If a member's
        tensor cannot be registered, RuntimeError is raised at all of them and says whose.
        """
        if self._made is not None:
            raise RuntimeError("double registration: the window has a tensor; deregister it first")
        owner = self._owner
        made = _Registration(owner, tensor)
        try:
            with owner._calls.failing("registering a window"):
                members = _exchange(owner._calls.group, made.own, owner._calls.limit)
            for rank, member in enumerate(members):
                if member.error:
                    who = (
                        ""
                        if rank == owner._rank
                        else f"rank {rank} could not register its tensor: "
                    )
                    raise RuntimeError(f"{who}{member.error}")
        except BaseException:
            made.close()
            raise
        made.members = members
        self._made = made
        self._end = weakref.finalize(self, made.close)
        self._end.atexit = False  # then the device is closed
        owner._windows.add(self)

    def tensor_deregister(self) -> None:
        """Take the tensor back. All members call it, and it blocks until all have.

        This member's puts are complete then, and so are those of others into its tensor. After an error the
        tensor is taken back too, but those of others may still be under way.
        """
        made = self._need()
        try:
            with self._owner._calls.failing("deregistering a window"):
                for each in made.pending:
                    each.exception(self._owner._calls.limit)
                self._owner._calls.group.barrier(timeout=self._owner._calls.limit)
        finally:
            self._free()

    def put(
        self,
        tensor: torch.Tensor,
        dst_rank: int,
        target_offset_nelems: int = 0,
        async_op: bool = False,
        opts: Any = None,
    ) -> Work:
        """Write a tensor into that of a member, from an element on, and signal to it.

        Its dtype is that of the member's tensor; any CPU tensor will do. Do not change it before the Work is
        complete; then the bytes are in the member's memory. With `opts.hints["signal"] = "0"`, it does not
        signal.
        """
        made = self._need()
        member = made.member(dst_rank)
        count, offset = tensor.numel(), int(target_offset_nelems)
        if offset < 0:
            raise RuntimeError(f"put: the offset is {offset}, and must be nonnegative")
        if str(tensor.dtype) != member.dtype:
            raise RuntimeError(
                f"put: the tensor's dtype {tensor.dtype} does not match {member.dtype}, that of the window "
                f"at rank {dst_rank}"
            )
        if offset + count > member.elements:
            raise RuntimeError(
                f"put: {count} elements from {offset} on: this exceeds the window size of rank {dst_rank}, "
                f"which is {member.elements} elements"
            )
        signals = getattr(opts, "hints", {}).get("signal", "1") != "0"
        array = flat(dense(tensor))
        if dst_rank == self._owner._rank:
            assign(made.tensor.view(-1)[offset : offset + count], tensor.detach().reshape(-1))
            if signals:
                made.box.arrive(dst_rank)
            return Work("put", [])
        number = number_for(member.box, self._owner._rank) if signals else None
        data = array.view(np.uint8) if count else b""

        def begin(limit: float) -> Transfer:
            where = offset * tensor.element_size()
            return made.region(dst_rank, limit).write(data, where, number)

        return self._post(f"put to rank {dst_rank}", begin, async_op, opts)

    def signal(self, peer_rank: int, async_op: bool = False, opts: Any = None) -> Work:
        """Signal to a member, after all that this one has put into its tensor before."""
        made = self._need()
        member = made.member(peer_rank)
        if peer_rank == self._owner._rank:
            made.box.arrive(peer_rank)
            return Work("signal", [])
        number = number_for(member.box, self._owner._rank)

        def begin(limit: float) -> Transfer:
            return made.peer(peer_rank, limit).notify(immediate=number)

        return self._post(f"signal to rank {peer_rank}", begin, async_op, opts)

    def wait_signal(self, peer_rank: int, async_op: bool = False, opts: Any = None) -> Work:
        """Wait for a signal of a member, and for what it has put before. Each signal ends one wait.

        Signals that nobody waits for are counted. It fails if the member is gone and has not signalled.
        """
        made = self._need()
        made.member(peer_rank)

        def begin(limit: float) -> Any:
            return made.box.wait(peer_rank, limit, lambda: made.peer(peer_rank, limit))

        return self._post(f"wait_signal from rank {peer_rank}", begin, async_op, opts)

    def map_remote_tensor(self, rank: int) -> torch.Tensor:
        """Return the tensor of a member in place: both see what either writes. Nothing is copied.

        It stays valid after tensor_deregister(). Raises RuntimeError unless the member is on this host and
        shares its memory.
        """
        made = self._need()
        member = made.member(rank)
        if rank == self._owner._rank:
            return made.tensor
        what = f"map_remote_tensor of rank {rank}"
        with self._owner._calls.failing(what):
            region = made.region(rank, self._owner._calls.limit)
            peer = made.peer(rank, self._owner._calls.limit)
            if Capability.MAP in peer.capabilities:
                found = torch.from_numpy(region.map())
                return found.view(getattr(torch, member.dtype.removeprefix("torch."))).view(
                    member.shape
                )
        raise RuntimeError(
            f"{what}: it is reached over {peer.transport}, and only members on one host that share memory "
            "can map each other's tensors: let it put what you need into your window, or use send and recv"
        )

    def get_attr(self, peer_rank: int) -> Any:
        """Return the attributes of the window at a member: `access_type` UNIFIED, one view of the memory."""
        self._need().member(peer_rank)
        kind = getattr(c10d, "WindowAttr", None)
        return _Attributes("UNIFIED") if kind is None else kind()

    def __repr__(self) -> str:
        what = "nothing registered" if self._made is None else self._made.own.dtype
        return f"<Window of {self._owner!r}, {what}>"

    def _post(self, what: str, begin: Any, async_op: bool, opts: Any) -> Work:
        """Begin what lasts at most the time-out in seconds. Return its Work, complete unless `async_op`."""
        calls, made = self._owner._calls, self._need()
        limit = calls.limit_of(opts) if opts is not None else calls.limit
        with calls.failing(what):
            begun = begin(limit)
            if isinstance(begun, Transfer):
                made.keep(begun)
                if not async_op:
                    begun.wait(limit)
        # Futures of windows wait for nobody else's: what a signal waits for may depend on those.
        work = Work(calls.text(what), [], [begun], [], limit, FutureQueue())
        if not async_op:
            work.wait()
        return work

    def _need(self) -> _Registration:
        made = self._made
        if made is None:
            raise RuntimeError("the window is not registered: call tensor_register() first")
        if os.getpid() != made.process:
            raise RuntimeError(
                "the window is of a process that forked this one, which cannot use it"
            )
        return made

    def _free(self) -> None:
        made, self._made = self._made, None
        if made is not None:
            self._end()


class _Attributes(NamedTuple):
    """The attributes of a window, for a torch that has no type for them."""

    access_type: str


class _Registration:
    """A tensor of a window while it is registered, and what this member has of the others'."""

    def __init__(self, owner: ProcessGroup, tensor: torch.Tensor) -> None:
        self.tensor = tensor
        self.process = os.getpid()
        self.members: list[_Member] = []
        self.pending: list[Transfer] = []
        self._keeping = threading.Lock()
        self._session = owner._session
        self._peers: dict[int, RemoteDevice] = {}
        self._regions: dict[int, RemoteRegion] = {}
        self._region: Region | None = None
        self.box: Box = owner._session.mailbox().open(owner._size)
        error = _obstacle(tensor, owner)
        if not error:
            try:
                self._region = self._session.device.register(flat(tensor).view(np.uint8))
            except RdmaError as problem:
                error = str(problem)
        device = self._session.device
        self.own = _Member(
            device.address,
            device.name,
            self._region.key if self._region is not None else 0,
            self.box.number,
            str(tensor.dtype),
            tuple(tensor.shape),
            tensor.numel(),
            error,
        )

    def member(self, rank: int) -> _Member:
        """Return what a member has registered. Raises RuntimeError if there is no such rank."""
        if not 0 <= rank < len(self.members):
            raise RuntimeError(f"rank {rank} is not in the window's group of {len(self.members)}")
        return self.members[rank]

    def peer(self, rank: int, limit: float) -> RemoteDevice:
        """Return the device of a member: always the same one, so that signals follow what was put."""
        found = self._peers.get(rank)
        if found is None:
            member = self.members[rank]
            found = self._peers.setdefault(
                rank, self._session.peer(member.address, member.name, limit)
            )
        return found

    def region(self, rank: int, limit: float) -> RemoteRegion:
        """Return the memory of a member."""
        found = self._regions.get(rank)
        if found is None:
            opened = self.peer(rank, limit).region(self.members[rank].key, limit)
            found = self._regions.setdefault(rank, opened)
        return found

    def keep(self, begun: Transfer) -> None:
        """Remember what deregistering has to wait for."""
        if not begun.done():
            with self._keeping:
                self.pending = [each for each in self.pending if not each.done()]
                self.pending.append(begun)

    def close(self) -> None:
        """Withdraw the tensor from the others. A second call does nothing, nor one in a child of fork."""
        if os.getpid() != self.process:
            return
        self.box.close()
        for each in list(self._regions.values()):
            each.close()
        if self._region is not None:
            self._region.close()


def _obstacle(tensor: torch.Tensor, owner: ProcessGroup) -> str:
    """Return why a tensor cannot be a window's; "" if it can."""
    if not tensor.is_cpu:
        return f"a window's tensor must be on the CPU, and this one is on {tensor.device}"
    if not is_dense(tensor) or not tensor.numel():
        return f"a window's tensor must be contiguous and have elements: its shape is {tuple(tensor.shape)}"
    nbytes = tensor.numel() * tensor.element_size()
    if not owner._session.device._has_registered(tensor.data_ptr(), nbytes):
        return (
            "a window's tensor must be in registered memory, which other processes reach, as in a MemPool of "
            "other backends: allocate it by rdmatensor.torch.empty(shape, dtype)"
        )
    return ""


def _exchange(group: Group, own: _Member, limit: float) -> list[_Member]:
    """Return what all members have registered, by rank. Raises what Group.all_gather raises."""
    text = np.frombuffer(json.dumps(own).encode(), np.uint8)
    sizes = group.all_gather(np.array([len(text)]), timeout=limit)
    texts = group.all_gather(text, timeout=limit, counts=[int(size) for size in sizes])
    members, start = [], 0
    for size in sizes:
        fields = json.loads(texts[start : start + int(size)].tobytes())
        fields[_Member._fields.index("shape")] = tuple(fields[_Member._fields.index("shape")])
        members.append(_Member(*fields))
        start += int(size)
    return members

# SPDX-License-Identifier: Apache-2.0
"""The device that the process groups of this process share, and how their members find each other."""

from __future__ import annotations

import json
import os
import secrets
import threading
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from .. import config
from .._api.remote import RemoteDevice
from .._api.secret import new_secret, secret_file
from .._tools.roles import device_name, own_address_towards
from ..device import Device
from ..group import Group
from .mailbox import Mailbox
from .work import failing

_lock = threading.Lock()
# There is one, unless groups come from several stores, or threads are members of one group.
_sessions: list[Session] = []


class Session:
    """A device, and the process groups that use it. The last one closes it."""

    def __init__(self, secret: str, device: Device) -> None:
        self.secret = secret
        """The secret by which the device and its peers recognize each other."""
        self.device = device
        self._groups: set[str] = set()
        self._opening = threading.Lock()
        self._mailbox: Mailbox | None = None
        self._peers: dict[str, RemoteDevice] = {}

    @classmethod
    def enter(cls, secret: str | None, called: str, rank: int, store: Any) -> Session:
        """Return a session with this secret for the group that is `called` so, or a new one.

        No secret takes any session's, or makes one. A device is in a group once: threads of this process that
        are members of one group have a session each. `rank` is that of this member among all, and names its
        device. Call leave() once for each call. Raises what Device raises.
        """
        with _lock:
            if secret is None:
                secret = _sessions[0].secret if _sessions else new_secret()
            for session in _sessions:
                if session.secret == secret and called not in session._groups:
                    break
            else:
                session = cls(secret, _open(secret, rank, store))
                _sessions.append(session)
            session._groups.add(called)
            return session

    def share(self, called: str) -> Session:
        """Return this session, for one process group more, which is `called` so."""
        with _lock:
            self._groups.add(called)
        return self

    def leave(self, called: str) -> None:
        """Close the device, unless other process groups than this one use it."""
        with _lock:
            self._groups.discard(called)
            if self._groups or self not in _sessions:
                return
            _sessions.remove(self)
        self.device.close()
        if self._mailbox is not None:
            self._mailbox.join()

    def mailbox(self) -> Mailbox:
        """Return what takes the signals of windows. It has a thread from the first call on."""
        with self._opening:
            if self._mailbox is None:
                self._mailbox = Mailbox(self.device)
            return self._mailbox

    def peer(self, address: str, name: str, timeout: float) -> RemoteDevice:
        """Return the device of another member, which windows of this process share. It may be gone.

        The first call connects, and blocks for at most `timeout` seconds. Raises what Device.connect raises.
        """
        with self._opening:
            found = self._peers.get(address)
        if found is None or not found.up:
            made = self.device.connect(address, timeout, expect=name)
            with self._opening:
                found = self._peers.get(address)
                if found is None or not found.up:
                    found = self._peers[address] = made
            if found is not made:
                made.close()
        return found


def current_device() -> Device:
    """Return the device of the process groups of this process. Raises RuntimeError if there are none.

    There are several only if process groups came from several stores: then it is the newest.
    """
    with _lock:
        for session in reversed(_sessions):
            return session.device
    raise RuntimeError('call torch.distributed.init_process_group("rdmatensor") first')


def join(
    store: Any, rank: int, size: int, name: str, ranks: list[int], timeout: float
) -> tuple[Session, Group]:
    """Join the group that all members of a process group make. Blocks until all have.

    Rank 0 puts the address of its device into `store`, with a secret unless the settings give one. `ranks`
    are the members' ranks among all processes. Raises DistBackendError, which names who has not come.
    """
    # Groups of one name may follow each other, and their members come in any order.
    generation = (store.add("members", 1) - 1) // size
    key = f"root of {generation}"
    everywhere = ranks[rank] if ranks else rank
    what = f"joining process group {name!r}"
    if rank:
        address, expected, called, secret = json.loads(_wait_for(store, key, timeout, what))
        with failing(what):
            session = Session.enter(secret, called, everywhere, store)
        return session, meet(session, rank, size, called, timeout, what, address, expected)
    called = f"{name[:40]} {secrets.token_hex(8)}"
    with failing(what):
        session = Session.enter(None, called, everywhere, store)
    store.set(
        key, json.dumps([session.device.address, session.device.name, called, session.secret])
    )
    group = meet(session, 0, size, called, timeout, what)
    store.delete_key(key)
    return session, group


def meet(
    session: Session,
    rank: int,
    size: int,
    name: str,
    timeout: float,
    what: str,
    address: str | None = None,
    expect: str | None = None,
) -> Group:
    """Join a group whose rank 0 is at `address`, with this session, and leave the session if that fails.

    Raises DistBackendError, which names the call `what`.
    """
    try:
        with failing(what):
            expected = expect or session.device.name
            return Group(session.device, rank, size, address, name, timeout, expected)
    except BaseException:
        session.leave(name)
        raise


def enter_alone(called: str, rank: int, store: Any) -> Session:
    """Return a session before others are known. Processes that share `store` get the same secret.

    Leave it by the name `called`.
    """
    with _lock:
        proposed = (_sessions[0].secret if _sessions else "") or new_secret()
    agreed = bytes(store.compare_set("secret", "", proposed)).decode() if proposed else ""
    with failing("creating a process group"):
        return Session.enter(agreed, called, rank, store)


def _wait_for(store: Any, key: str, timeout: float, what: str) -> bytes:
    """Return what rank 0 puts into the store."""
    try:
        store.wait([key], timedelta(seconds=timeout))
        found: bytes = store.get(key)
    except RuntimeError as error:  # of which kind depends on the store
        raise dist.DistBackendError(
            f"rdmatensor: {what}: rank 0 has not come within {timeout:.0f} s ({error})"
        ) from error
    return found


def _open(secret: str, rank: int, store: Any) -> Device:
    """Open a device at the address by which others know this host."""
    host = None if config.get("BIND_ADDRESS") else _own_address(store)
    if not secret:
        return Device(device_name(rank), host)
    with secret_file(secret) as path:
        config.set("SECRET_FILE", path)
        try:
            return Device(device_name(rank), host)
        finally:
            config.set("SECRET_FILE", "")


def _own_address(store: Any) -> str | None:
    """Return the address of this host in the network in which the store, or the master, is."""
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    host = getattr(store, "host", None) or os.environ.get("MASTER_ADDR")
    port = getattr(store, "port", None) or os.environ.get("MASTER_PORT", "1")
    return own_address_towards(f"{host}:{port}") if host else None


def _forget() -> None:
    """Leave the devices to the parent process, after fork."""
    global _lock
    _lock = threading.Lock()
    _sessions.clear()


os.register_at_fork(after_in_child=_forget)

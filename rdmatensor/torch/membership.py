# SPDX-License-Identifier: Apache-2.0
"""Which processes are members of a process group, and how that changes."""

from __future__ import annotations

import json
import secrets
from typing import Any, NamedTuple

from ..group import Group
from .session import Session, enter_alone, meet
from .work import failing


class _Handle(NamedTuple):
    """The address of a process's device and the secret that it accepts, with which others join a group."""

    member: str
    address: str
    name: str
    secret: str


class Membership:
    """The group of a process group, and the sessions that it uses. close() leaves both.

    The home session stays open as long as the process group lives, because handles name its device. Members
    of a group use the session of its rank 0, which is another one only if they came from another store.
    """

    def __init__(self, home: Session, called: str, group: Group | None = None) -> None:
        """Take over `home`, which was entered for the group that is `called` so."""
        self.home = home
        self._called = called
        self.session = home
        self.group = group
        self._entered: tuple[Session, str] | None = None
        self._member = secrets.token_hex(8)
        self._used: set[int] = set()

    @classmethod
    def alone(cls, rank: int, store: Any) -> Membership:
        """Return a membership without a group, before others are known."""
        called = f"alone {secrets.token_hex(8)}"
        return cls(enter_alone(called, rank, store), called)

    def handle(self) -> str:
        """Return the text by which others know this process: the same as long as the process group lives."""
        device = self.home.device
        return json.dumps(_Handle(self._member, device.address, device.name, self.home.secret))

    def change(self, uuid: int, handles: Any, rank: int, store: Any, timeout: float) -> Group:
        """Leave the group, and join the members of the handles under a new number.

        `rank` and `store` are those with which the process group was created. Raises RuntimeError for wrong
        arguments, and then the group stays; else DistBackendError, and then there is no group.
        """
        ordered = list(handles) if isinstance(handles, list | tuple) else sorted(handles)
        members = [_parse(each) for each in ordered]
        names = [each.member for each in members]
        if self._member not in names:
            raise RuntimeError("reconfigure: this process's handle is not among the handles")
        if len(set(names)) != len(names):
            raise RuntimeError("reconfigure: two handles are of one process")
        if uuid in self._used:
            raise RuntimeError(f"reconfigure: uuid {uuid} was already used: give a fresh one")
        self._used.add(uuid)
        self.leave_group()
        root, number = members[0], names.index(self._member)
        called, what = f"{uuid} of {root.member}", f"reconfigure {uuid}"
        with failing(what):
            session = Session.enter(root.secret, called, rank, store)
        address = root.address if number else None
        self.group = meet(session, number, len(members), called, timeout, what, address, root.name)
        self.session, self._entered = session, (session, called)
        return self.group

    def leave_group(self) -> None:
        """Close the group, if there is one, and leave its session."""
        group, self.group = self.group, None
        entered, self._entered = self._entered, None
        self.session = self.home
        if group is not None:
            group.close()
        if entered is not None:
            session, called = entered
            session.leave(called)

    def close(self) -> None:
        """Leave the group and the sessions."""
        self.leave_group()
        self.home.leave(self._called)


def _parse(text: str) -> _Handle:
    try:
        fields = json.loads(text)
        if len(fields) == len(_Handle._fields) and all(isinstance(each, str) for each in fields):
            return _Handle(*fields)
    except (TypeError, ValueError):
        pass
    raise RuntimeError(f"reconfigure: {text[:80]!r} is no handle of the backend rdmatensor")

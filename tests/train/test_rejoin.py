# SPDX-License-Identifier: Apache-2.0
"""How a process that comes back finds the others, some of whose hosts are gone."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from rdmatensor import Device
from rdmatensor.errors import ConnectionRefused, UsageError
from rdmatensor.train.backend.base import backend
from rdmatensor.train.run import rejoin
from rdmatensor.train.run.membership import Membership
from rdmatensor.train.run.roles import Role
from rdmatensor.train.run.session import Session
from support.ports import free_ports

pytestmark = pytest.mark.timeout(100)
FIRST, SECOND = ["a:1", "b:2", "c:3"], ["a:1", "b:22", "c:3"]
SIZE = len(FIRST)


@pytest.fixture(scope="module")
def silent() -> Iterator[list[str]]:
    """Listeners that take connections and say nothing, as the address of a host that has hung does."""
    with ExitStack() as stack:
        listeners = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(2)]
        yield [f"127.0.0.1:{each.getsockname()[1]}" for each in listeners]


@pytest.fixture(scope="module")
def there() -> Iterator[list[str]]:
    """The devices of two processes of a training under way, who disagree where one of them is now."""
    with ExitStack() as stack:
        devices = []
        for addresses in (FIRST, SECOND):
            place = Membership()
            place.device = stack.enter_context(Device("there"))
            place.addresses = addresses
            place.published = rejoin.Addresses(place)
            devices.append(place.device)
        yield [each.address for each in devices]


def test_a_silent_host_hides_nobody(
    silent: list[str], there: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rejoin, "_ANSWER", 5.0)  # enough for a busy machine
    with Device("back") as device:
        assert rejoin.find(device, [*silent, there[0]], SIZE) == FIRST


def test_the_first_that_answers_counts(there: list[str]) -> None:
    (nobody,) = free_ports(1)
    asked = [f"127.0.0.1:{nobody}", *there[::-1], there[0]]
    with Device("back") as device:
        assert rejoin.find(device, asked, SIZE) == SECOND
        assert rejoin.find(device, [f"127.0.0.1:{nobody}"], SIZE) == []
        assert rejoin.find(device, [], SIZE) == []
        with pytest.raises(UsageError, match=r"in a training of 3 processes.*one of 4"):
            rejoin.find(device, there, SIZE + 1)


def test_what_fails_to_join_again_gives_up_no_arena_of_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(device: Device) -> None:
        raise UsageError("no memory to share")

    run = Session(Role(0, 1, "", 0, "the test"), 5.0)
    run._arena = 1  # as an earlier group leaves it: no address any more
    given_up: list[int | None] = []
    monkeypatch.setattr(backend(), "share", refuse)
    monkeypatch.setattr(backend(), "unshare", given_up.append)
    (nobody,) = free_ports(1)
    with pytest.raises(UsageError, match="no memory to share"):
        run.join_again(Role(1, 4, f"127.0.0.1:{nobody}", 0, "the test"), 5.0)
    assert given_up == [None]


def test_who_joins_again_does_not_come_back(there: list[str]) -> None:
    """Others who have not left yet show their training still."""
    run = Session(Role(0, 1, "", 0, "the test"), 5.0)
    with pytest.raises(ConnectionRefused):  # by a device of another name: it asks to join
        run.join_again(Role(1, SIZE, there[0], 0, "the test"), 0.5)
    assert not run.returns

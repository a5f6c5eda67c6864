# SPDX-License-Identifier: Apache-2.0
"""Verbs in guests: the device, within one host and between two; links, losses, dead hosts."""

from __future__ import annotations

import pytest

from rdmatensor.softroce import GuestDied, Host, Lab, LabError, Process
from softroce.processes import rping_server

PINGPONG = ["ibv_rc_pingpong", "-d", "rxe0", "-g", "1", "-n", "50"]


def listening(server: Host) -> Process:
    """A ping-pong server that can be connected to."""
    process = server.start(PINGPONG)
    port = "until grep -q ':4853 ' /proc/net/tcp /proc/net/tcp6; do sleep 0.05; done"
    server.run(["sh", "-c", port])
    return process


def pingpong(server: Host, client: Host) -> str:
    """What the client prints when all messages went both ways.

    The client leaves when it has all answers. When its last acknowledgement is lost, as on a busy machine,
    the server asks for it again for ever (its retry_cnt of 7 has no end in rxe, and a packet for a queue pair
    that is gone gets no answer). So nothing waits for the server's end.
    """
    waiting = listening(server)
    done = client.run([*PINGPONG, server.address])
    waiting.kill()
    waiting.wait()
    return done.stdout


def ping(server: Host, client: Host, pings: int = 5) -> None:
    """Reads, writes and messages both ways, by sides that part by rdma_cm's handshake.

    Where packets are lost, this one and not `pingpong`, whose sides do not wait for each other.
    """
    waiting = rping_server(server, pings)
    client.run(["rping", "-c", "-a", server.address, "-C", str(pings)])
    assert waiting.wait() == 0


def test_device(lab: Lab) -> None:
    out = lab.hosts[0].run(["ibv_devinfo", "-d", "rxe0"]).stdout
    assert "PORT_ACTIVE" in out
    assert "active_mtu:\t\t4096" in out


def test_one_host_talks_to_itself(lab: Lab) -> None:
    assert "50 iters" in pingpong(lab.hosts[0], lab.hosts[0])


def test_two_hosts_talk(two_hosts: Lab) -> None:
    out = pingpong(*two_hosts.hosts)
    assert "::ffff:10.77.0.2" in out
    assert "50 iters" in out


def test_rdma_cm_between_two_hosts(two_hosts: Lab) -> None:
    first, second = two_hosts.hosts
    ping(first, second)


def test_link_down_and_up(two_hosts: Lab) -> None:
    first, second = two_hosts.hosts
    first.link(False)
    assert "DOWN" in first.run(["rdma", "link", "show", "rxe0/1"]).stdout
    first.link(True)
    assert "ACTIVE" in first.run(["rdma", "link", "show", "rxe0/1"]).stdout
    ping(first, second)


def test_losses_are_made_and_survived(two_hosts: Lab) -> None:
    first, second = two_hosts.hosts
    first.netem("loss", "10%")
    try:
        ping(first, second, 30)
        counters = first.run(["tc", "-s", "qdisc", "show", "dev", "eth0"]).stdout
        assert "dropped 0," not in counters
    finally:
        first.netem()
    assert "netem" not in first.run(["tc", "qdisc", "show", "dev", "eth0"]).stdout


def test_one_host_has_no_network_to_break(lab: Lab) -> None:
    with pytest.raises(LabError, match="hosts=2"):
        lab.hosts[0].link(False)


@pytest.mark.long
def test_killed_host_and_its_return(two_hosts: Lab) -> None:
    first, second = two_hosts.hosts
    lost = listening(second)
    second.kill()
    assert not second.alive
    with pytest.raises(GuestDied, match="host1 was killed"):
        lost.wait()
    with pytest.raises(GuestDied, match="host1 was killed"):
        second.start(["true"])
    assert first.run(["echo", "alive"]).stdout == "alive\n"
    second.restart()
    assert "50 iters" in pingpong(second, first)

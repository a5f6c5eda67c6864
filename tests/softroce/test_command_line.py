# SPDX-License-Identifier: Apache-2.0
"""The command `rdmatensor` where there is RDMA: what it finds, and what it measures between two hosts."""

from __future__ import annotations

import json
import sys

import pytest

from rdmatensor.softroce import Lab
from softroce.processes import PATIENCE
from support.waits import until

RDMATENSOR = [sys.executable, "-m", "rdmatensor"]


def test_doctor_finds_the_device_and_tries_it(two_hosts: Lab) -> None:
    host = two_hosts.hosts[0]
    done = host.run([*RDMATENSOR, "doctor", "--json"], check=False)
    report = json.loads(done.stdout)
    found = {finding["area"]: finding for finding in report["findings"]}
    assert done.returncode == 0 and report["ok"], report
    port = found["port rxe0:1"]
    assert port["state"] == "ok" and "ACTIVE" in port["text"] and "is used" in port["text"]
    # The core's choice: RoCE v2, by IPv4.
    assert f"GID 1 {host.address}, RoCE v2 on eth0: chosen" in port["details"]
    link_local = [line for line in port["details"] if line.startswith("GID 0 fe80:")]
    assert len(link_local) == 1 and link_local[0].endswith("goes after an IPv4 one"), port
    assert "rxe0:1" in found["transport verbs"]["text"]
    assert found["secret"]["state"] == "ok"
    for transport in ("shm", "verbs"):
        assert found[f"self-test {transport}"]["state"] == "ok"
        assert "compared" in found[f"self-test {transport}"]["text"]


@pytest.mark.long
def test_ping_between_hosts_goes_over_verbs(two_hosts: Lab) -> None:
    near, far = two_hosts.hosts
    patience = {"RDMATENSOR_DEADLINE_MS": str(int(PATIENCE * 1000))}
    listener = far.start([*RDMATENSOR, "ping", "--listen", "--once"], env=patience)
    until("ping does not listen", lambda: b"listening" in listener.stdout, PATIENCE)
    command = [*RDMATENSOR, "ping", far.address, "--json"]
    done = near.run(command, env=patience, timeout=PATIENCE, check=False)
    assert done.returncode == 0, (done.stderr, listener.stdout, listener.stderr)
    result = json.loads(done.stdout)
    assert result["transport"] == "verbs" and "rxe0:1" in result["device"]
    assert "another host" in result["passed_over"]["shm"]
    assert result["write"]["p50"] > 0 and result["speeds"][0]["read"] > 0
    assert listener.wait(PATIENCE) == 0
    assert b"over verbs" in listener.stdout

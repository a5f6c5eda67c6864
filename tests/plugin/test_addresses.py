# SPDX-License-Identifier: Apache-2.0
"""Servers listen where the cluster says that they are, and no wider; peers find them there."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
from contextlib import closing
from pathlib import Path

from plugin.transports import TRANSPORT
from support import warm
from support.ports import free_ports


def _own_address() -> str | None:
    """This machine's address in its network; None without one. Nothing is sent."""
    with closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return None
        own = str(probe.getsockname()[0])
        return own if not own.startswith("127.") else None


def _has_ipv6() -> bool:
    try:
        with closing(socket.socket(socket.AF_INET6, socket.SOCK_STREAM)) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


def test_servers_listen_where_the_cluster_says() -> None:
    # The host in the cluster, BIND_ADDRESS, where it listens and the host that peers are told.
    cases = [
        ("127.0.0.1", "", r"127\.0\.0\.1", "127.0.0.1"),
        ("127.0.0.2", "", r"127\.0\.0\.2", "127.0.0.2"),
        ("localhost", "", r"(127\.0\.0\.1|\[::1\])", "localhost"),
        ("localhost", "0.0.0.0", r"0\.0\.0\.0", "localhost"),
        ("127.0.0.1", "127.0.0.3", r"127\.0\.0\.3", "127.0.0.3"),
    ]
    if own := _own_address():
        cases += [(own, "", re.escape(own), own), ("127.0.0.1", own, re.escape(own), own)]
    if _has_ipv6():
        cases.append(("[::1]", "", r"\[::1\]", "[::1]"))
    run = subprocess.run(
        [
            warm.python(),
            Path(__file__).with_name("addresses.py"),
            json.dumps([case[:2] for case in cases]),
        ],
        env=os.environ | {"RDMATENSOR_LOG_LEVEL": "debug"},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert run.returncode == 0, run.stderr[-4000:]
    result = json.loads(run.stdout.splitlines()[-1])
    others = range(1, len(cases))
    assert result["averages"] == [2.0 + index for index in others]
    stats = result["stats"]
    assert {peer["transport"] for peer in stats["peers"]} == {TRANSPORT}
    assert stats["paths"]["rpc"]["sent_tensors"] == 0
    assert stats["transports"][TRANSPORT]["received_bytes"] >= 2 * len(others) * 200_000
    for index, (_, _, listens, told) in enumerate(cases):
        task = f"/job:worker/replica:0/task:{index}"
        pattern = rf"{task} is reached at {re.escape(told)}:(?P<port>\d+) and listens on {listens}:(?P=port)$"
        assert re.search(pattern, run.stderr, re.M), (pattern, run.stderr)
    # The task that the cluster puts on another machine.
    warnings = [line for line in run.stderr.splitlines() if "rdmatensor: WARN" in line]
    assert len(warnings) == 1, warnings
    warning = warnings[0]
    assert "cannot listen on this task's host in the cluster, 198.51.100.7, " in warning
    assert "RDMATENSOR_BIND_ADDRESS" in warning


LOST = "lost.test"
SERVER = f"""
import os
import tensorflow as tf
tf.distribute.Server({{"worker": ["{LOST}:%d"]}}, "worker", 0, protocol="grpc+rdma", start=False)
print("started", flush=True)
os._exit(0)
"""


def test_a_name_server_that_does_not_answer_does_not_hang_a_server(faults_library: Path) -> None:
    run = subprocess.run(
        [warm.python(LD_PRELOAD=str(faults_library)), "-c", SERVER % free_ports(1)[0]],
        env=os.environ
        | {
            "FAULTS_LOST_NAME": LOST,
            "RDMATENSOR_DEADLINE_MS": "200",
        },
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert run.stdout == "started\n", run.stderr[-4000:]
    (warning,) = (line for line in run.stderr.splitlines() if "rdmatensor: WARN" in line)
    assert f"cannot listen on this task's host in the cluster, {LOST}, " in warning
    assert f"{LOST} was not resolved within the deadline" in warning


SERVERS = """
import os
import tensorflow as tf
import rdmatensor.config

def serve(job, port):
    cluster = {job: [f"127.0.0.1:{port}"]}
    return tf.distribute.Server(cluster, job, 0, protocol="grpc+rdma")

servers = [serve("first", PORTS[1]), serve("second", PORTS[2])]
rdmatensor.config.set("POLICY", "rdma")
try:
    serve("third", PORTS[3])
except tf.errors.ResourceExhaustedError as error:
    print(error.message, flush=True)
os._exit(0)
"""


def test_one_port_is_for_one_server() -> None:
    """The next one, also of the same process, has no device, and says why."""
    ports = free_ports(4)
    run = subprocess.run(
        [warm.python(), "-c", f"PORTS = {ports}\n{SERVERS}"],
        env=os.environ | {"RDMATENSOR_LOG_LEVEL": "debug", "RDMATENSOR_BIND_PORT": str(ports[0])},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert run.returncode == 0, run.stderr[-4000:]
    told = re.search(r"job:first.* is reached at 127\.0\.0\.1:(\d+) and listens", run.stderr)
    assert told and int(told[1]) == ports[0], run.stderr
    (warning,) = (line for line in run.stderr.splitlines() if "rdmatensor: WARN" in line)
    assert "all tensors of /job:second/replica:0/task:0 go by grpc: " in warning
    for text, task in ((warning, "second"), (run.stdout, "third")):
        assert f"device /job:{task}/replica:0/task:0" in text, text
        assert f"RDMATENSOR_BIND_PORT is {ports[0]}, and that port is in use" in text, text
        assert "give a range" in text, text

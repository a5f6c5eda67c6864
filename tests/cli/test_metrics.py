# SPDX-License-Identifier: Apache-2.0
"""Metrics and `rdmatensor top` without TensorFlow; tests/plugin/test_metrics.py has the plugin's."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rdmatensor
import rdmatensor.metrics
import rdmatensor.tensorflow
from rdmatensor._tools import watching
from support.ports import free_ports

SECONDS = 60
Run = subprocess.CompletedProcess[str]


def python(*arguments: str | Path, **variables: str) -> Run:
    kept = {k: v for k, v in os.environ.items() if not k.startswith("RDMATENSOR_")}
    return subprocess.run(
        [sys.executable, *arguments],
        env=kept | variables,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=SECONDS,
        check=False,
    )


@pytest.fixture
def endpoint() -> Iterator[rdmatensor.metrics.Endpoint]:
    """Of this process."""
    endpoint = rdmatensor.metrics.serve(0)
    assert endpoint
    yield endpoint
    endpoint.close()


# ---- serve -------------------------------------------------------------------------------------------


def test_counters_of_devices_are_served(endpoint: rdmatensor.metrics.Endpoint) -> None:
    with rdmatensor.Device(name="first") as first, rdmatensor.Device(name="second") as second:
        first.allocate(4096, name="page")
        with second.connect(first.address) as remote:
            remote.region("page").write(b"x" * 100).wait()
        seen = watching.read(endpoint.address)
        for device in (first, second):
            for name, number in device.stats()._asdict().items():
                # The connection's end is still under way.
                gauge = name in ("region_bytes", "pending")
                if gauge or name in ("writes", "write_bytes", "reads", "channels_opened"):
                    metric = f"device_{name}" if gauge else f"device_{name}_total"
                    assert seen.value(metric, address=device.address) == number, name
        assert seen.value("device_write_bytes_total", device="second") == 100
    # Other tests may have imported TensorFlow.
    assert seen.value("plugin_loaded") == rdmatensor.tensorflow.loaded()
    assert seen.labels("info") == [{"version": rdmatensor.__version__}]
    gone = watching.read(endpoint.address)
    assert gone.labels("device_writes_total") == []


def test_groups_are_served_and_shown(endpoint: rdmatensor.metrics.Endpoint) -> None:
    with rdmatensor.Device() as first, rdmatensor.Device() as second, ThreadPoolExecutor() as pool:
        joining = pool.submit(rdmatensor.Group, second, 1, 2, first.address, "sums")
        groups = [rdmatensor.Group(first, 0, 2, name="sums"), joining.result()]

        def sum_up(count: int) -> None:
            list(pool.map(lambda group: group.all_reduce(np.ones(count)), groups))

        sum_up(1000)
        seen = watching.read(endpoint.address)
        sum_up(5000)
        now = watching.read(endpoint.address)
        top_says = top("--once", endpoint.address).stdout
        for group in groups:
            who = {"group": "sums", "rank": str(group.rank)}
            assert {**who, "size": "2"} in now.labels("group_info")
            assert seen.value("group_operations_total", **who) == 1
            assert now.value("group_operations_total", **who) == 2
            assert now.value("group_bytes_total", **who) == sum(group.info.bytes.values()) > 0
            assert now.value("group_copied_bytes_total", **who) == group.info.copies
        assert re.search(r"sums +[01] of 2", top_says) and "plugin" not in top_says
        # Other tests of this process may have groups too.
        found = [
            each for each in watching.view("here", seen, now).groups if each["group"] == "sums"
        ]
        assert len(found) == 2
        for shown in found:
            assert shown["operations_per_s"] > 0 and shown["bytes_per_s"] > 0
            assert shown["operations"] == 2
    left = watching.read(endpoint.address).labels("group_info")
    assert all(each["group"] != "sums" for each in left)


OFF = """
import sys
sys.modules["prometheus_client"] = None
import rdmatensor.metrics
print(rdmatensor.metrics.serve())
try:
    rdmatensor.metrics.serve(0)
except rdmatensor.Unsupported as error:
    print(error)
"""


def test_without_a_port_nothing_is_served_or_needed() -> None:
    none, missing = python("-c", OFF).stdout.splitlines()
    assert none == "None"
    assert "pip install 'rdmatensor[metrics]'" in missing


def test_a_setting_without_a_port_is_told(setting: Callable[[str, str | int], None]) -> None:
    setting("METRICS", "0.0.0.0")
    with pytest.raises(rdmatensor.UsageError, match="no TCP port"):
        rdmatensor.metrics.serve()


def test_a_port_that_is_taken_is_told(endpoint: rdmatensor.metrics.Endpoint) -> None:
    with pytest.raises(rdmatensor.DeviceError, match=rf"port {endpoint.port}.*in use.*METRICS"):
        rdmatensor.metrics.serve(endpoint.port)
    with pytest.raises(rdmatensor.UsageError, match="70000"):
        rdmatensor.metrics.serve(70000)


FORK = """
import os, time, rdmatensor.metrics
first = rdmatensor.metrics.serve(0)
reader, writer = os.pipe()
child = os.fork()
if child == 0:
    os.close(writer)
    os.read(reader, 1)  # lives longer than the endpoint
    os._exit(0)
first.close()
rdmatensor.metrics.serve(first.port).close()
os.close(writer)
os.waitpid(child, 0)
print("served again")
"""


def test_a_child_does_not_keep_the_port() -> None:
    done = python("-W", "ignore", "-c", FORK)
    assert done.stdout == "served again\n", done.stderr


PROGRAM = """
import os, sys
import beside
from rdmatensor import metrics
from rdmatensor._tools import watching
port = int(os.environ["RDMATENSOR_METRICS"].rpartition(":")[2])
assert metrics.serve().port == port  # the one that is there
seen = watching.read(f"127.0.0.1:{port}")
print(__name__, sys.argv[1:], beside.__name__, seen.value("info"))
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    (tmp_path / "beside.py").touch()
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    return path


def test_a_program_is_served_unchanged(program: Path) -> None:
    address = f"127.0.0.1:{free_ports(1)[0]}"
    variables = {"RDMATENSOR_METRICS": address, "RDMATENSOR_LOG_FORMAT": "json"}
    done = python("-m", "rdmatensor.metrics", program, "a", "-b", **variables)
    assert done.stdout == "__main__ ['a', '-b'] beside 1.0\n", done.stderr
    line = json.loads(done.stderr.splitlines()[0])
    assert line["component"] == "metrics" and address in line["message"]


def test_launch_serves_each_task(program: Path) -> None:
    port = free_ports(1)[0]
    options = ["--metrics-port", str(port), "-n", "2"]
    done = python("-m", "rdmatensor", "launch", *options, program, "x")
    assert done.returncode == 0, done.stderr
    wanted = [f"[worker {index}] __main__ ['x'] beside 1.0" for index in range(2)]
    assert sorted(done.stdout.splitlines()) == wanted
    assert f":{port}/metrics" in done.stderr and f":{port + 1}/metrics" in done.stderr


# ---- top ---------------------------------------------------------------------------------------------


def top(*arguments: str) -> Run:
    return python("-m", "rdmatensor", "top", "--interval", "0.1", *arguments)


def test_top_shows_a_process(endpoint: rdmatensor.metrics.Endpoint) -> None:
    nobody = f"127.0.0.1:{free_ports(1)[0]}"
    done = top("--once", endpoint.address, nobody)
    assert done.returncode == 0, done.stderr
    assert f"no grpc+rdma server and no training yet at {endpoint.address}" in done.stdout
    assert ("plugin is not loaded" in done.stdout) != rdmatensor.tensorflow.loaded()
    assert f"{nobody}: Connection refused: does the task call" in done.stdout.replace("\n", " ")
    done = top("--json", str(endpoint.port))
    (view,) = json.loads(done.stdout)
    assert view["address"] == endpoint.address and view["seconds"] > 0 and not view["error"]


class Page(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"<html>{ not metrics</html>\n")

    def log_message(self, *_: Any) -> None:
        pass


def test_top_says_that_something_else_answers() -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        done = top("--once", f"127.0.0.1:{server.server_port}")
        server.shutdown()
    assert done.returncode == 1
    assert "another program answers there" in done.stdout and "Traceback" not in done.stderr


def test_who_does_not_answer_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "_ANSWER_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        found = watching.read_all([address])[address]
    assert isinstance(found, watching.NotReadable) and "no complete answer" in str(found)


def test_top_wants_addresses() -> None:
    done = top("--once")
    assert done.returncode == 2 and "RDMATENSOR_METRICS" in done.stderr
    done = top("--once", "worker")
    assert done.returncode == 2 and "'worker' is not HOST:PORT" in done.stderr


def test_addresses_of_several_tasks() -> None:
    found = watching.addresses(["9100", "node:1-3", "[fe80::1]:7", ":8"])
    ours = [f"127.0.0.1:{port}" for port in (9100, 8)]
    assert found == [ours[0], "node:1", "node:2", "node:3", "[fe80::1]:7", ours[1]]
    for wrong in ("node", "node:", "0", "node:9-7", "node:65536", "fe80::1:7", "http://node:1"):
        with pytest.raises(ValueError, match="is not HOST:PORT"):
            watching.addresses([wrong])


TEXT = """
# TYPE rdmatensor_plugin_loaded gauge
rdmatensor_plugin_loaded 1
rdmatensor_server_info{{task="/job:worker/replica:0/task:0"}} 1
rdmatensor_sent_bytes_total{{path="static"}} {sent}
rdmatensor_peer_info{{peer="/job:ps/replica:0/task:1",direction="receive",state="ready",transport="shm",why="[red]\x1b[2J"}} 1
rdmatensor_peer_bytes_total{{peer="/job:ps/replica:0/task:1",direction="receive"}} {received}
rdmatensor_peer_wait_seconds_total{{peer="/job:ps/replica:0/task:1"}} {waited}
rdmatensor_edge_waits_total{{edge="w:0",peer="/job:ps/replica:0/task:1",task="t"}} 4
rdmatensor_edge_wait_seconds_total{{edge="w:0",peer="/job:ps/replica:0/task:1",task="t"}} {waited}
rdmatensor_checksums_total{{result="corrupted"}} 2
rdmatensor_rpc_sent_tensors_total{{reason="string"}} 3
other_total 5
"""  # noqa: E501


def test_rates_are_those_between_two_looks() -> None:
    before = watching.parse(TEXT.format(sent=100, received=1000, waited=1), 10.0)
    now = watching.parse(TEXT.format(sent=50, received=1500, waited=2), 12.0)
    view = watching.view("node:1", before, now)
    assert view.paths["static"]["sent_bytes"] == 50
    assert view.paths["static"]["sent_bytes_per_s"] == 0  # the task was started again
    (peer,) = view.peers
    assert (peer["bytes_per_s"], peer["waiting"], peer["why"]) == (250, 0.5, "[red]?[2J")
    assert view.slow_edges[0]["wait_seconds"] == 2 and view.slow_edges[0]["waiting"] == 0.5
    assert view.faults["tensors_corrupted"] == 2 and view.fallbacks == {"string": 3}
    assert "total" not in now.metrics and "other_total" not in now.metrics


def test_what_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    from rich.console import Console

    from rdmatensor._tools.commands.top import _screen

    now = watching.parse(TEXT.format(sent=50, received=1500, waited=2), 12.0)
    views = [watching.view("node:1", now, now), watching.View("node:2", error="[gone]")]
    Console(highlight=False, markup=False, width=120).print(_screen(views))
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == "worker 0 at node:1"
    assert "from ps 1 0 0 B 0.00 shm [red]?[2J" in lines
    assert "ps 1 4 500 ms 0 us 0.00 w:0" in lines
    assert "since the start: tensors corrupted 2, string 3" in lines
    assert lines[-1] == "node:2: [gone]"


# ---- logs --------------------------------------------------------------------------------------------

LOG = """
from rdmatensor._ffi import lib
odd = b'tensorflow: from "a\\\\b"\\n\\x01\\xff\\xed\\xa0\\x80 \\xe2\\x82\\xac'
for text in (odd, b"device x: y", b"z" * 9999):
    lib.rdt_log_line(lib.RDT_LOG_WARN, text)
lib.rdt_log_line(lib.RDT_LOG_DEBUG, b"no")
"""


def test_lines_for_collectors_of_logs() -> None:
    lines = [
        json.loads(line)
        for line in python("-c", LOG, RDMATENSOR_LOG_FORMAT="json").stderr.splitlines()
    ]
    first, second, third = lines
    assert first.keys() == {"time", "level", "pid", "component", "message"}
    assert (first["level"], first["component"]) == ("warn", "tensorflow")
    assert first["message"] == 'from "a\\b"\n\x01' + "\ufffd" * 4 + " €"
    assert (second["component"], second["message"]) == ("core", "device x: y")
    assert third["message"] == "z" * len(third["message"]) and len(third["message"]) > 4000
    assert python("-c", LOG).stderr.splitlines()[-2] == "rdmatensor: WARN: device x: y"

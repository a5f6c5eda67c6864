# SPDX-License-Identifier: Apache-2.0
"""The driver of `make bench`: parts that fail are named, the others are in the record."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from rich.console import Console

import team

driver = pytest.importorskip("run", reason="bench/run.py needs the extra bench")


GOOD = """
import pathlib, sys
sys.path.insert(0, BENCH)
import record
run = record.Run("good", record.Environment.here())
run.results.append(record.Result("s", sys.argv[-1], "w", "s", [1.0]))
run.write(pathlib.Path(sys.argv[-2]))
"""


def test_what_fails_is_named_and_the_rest_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = {
        "breaks": "raise SystemExit(3)",
        "mute": "pass",
        "slow": "import time; time.sleep(60)",
        "good": GOOD.replace("BENCH", repr(str(driver.HERE))),
    }
    for name, code in programs.items():
        (tmp_path / f"{name}.py").write_text(code)
    parts = {name: driver.Part(name, patience_s=60.0) for name in programs}
    parts["slow"] = driver.Part("slow", patience_s=1.0)
    monkeypatch.setattr(driver, "HERE", tmp_path)
    runs, faults = driver.run_parts(parts, True, Console(quiet=True))
    assert faults == [
        "breaks ended with status 3",
        "mute wrote no record",
        "slow took longer than 1 s and was killed",
    ]
    assert [result.case for run in runs for result in run.results] == ["--quick"]


def test_every_program_of_the_set_is_there() -> None:
    for part in driver.PARTS.values():
        assert (driver.HERE / f"{part.program}.py").is_file(), part.program


def test_ucx_is_read_by_its_columns() -> None:
    rivals = pytest.importorskip("rivals")
    header = (
        "iterations,50.0_percentile_lat,avg_lat,overall_lat,avg_bw,overall_bw,avg_mr,overall_mr"
    )
    output = (
        f"[1] UCX WARN  a, b\n{header}\n2000,0.25,93.0,94.0,10.0,11.0,12,13\n[2] UCX  WARN c, d\n"
    )
    figures = rivals.parse_ucx(output)
    assert figures.seconds == pytest.approx(0.25e-6)
    assert figures.bytes_per_second == 11 * 1024 * 1024
    for wrong in ("", "connection refused", f"{header}\n", "iterations,x\n1,2\n"):
        with pytest.raises(team.Failed, match="ucx_perftest printed"):
            rivals.parse_ucx(wrong)


def test_a_reason_is_one_line() -> None:
    rivals = pytest.importorskip("rivals")
    output = "[1] x.c:1 UCX  ERROR no device\n[1] x.c:2 UCX  ERROR no transports\nended\n"
    assert rivals.reason(output) == "[1] x.c:1 UCX  ERROR no device"
    assert rivals.reason("trace\n\nValueError: no\n") == "ValueError: no"
    assert rivals.reason("one\ntwo\n\n") == "two"
    assert rivals.reason("") == "it printed nothing"


def test_a_listener_is_awaited_without_connecting_to_it() -> None:
    """It would take the connection for its client's."""
    programs = pytest.importorskip("programs")
    port = team.free_port()
    code = f"""
import socket, time
time.sleep(0.3)
server = socket.create_server(("127.0.0.1", {port}))
server.settimeout(0.3)
try:
    server.accept()
    print("taken", flush=True)
except TimeoutError:
    print("free", flush=True)
time.sleep(60)
"""
    with programs.started([sys.executable, "-c", code]) as server:
        programs.await_listener(server, port)
        assert programs.first_line(server) == "free"


def test_a_server_that_ends_is_not_awaited() -> None:
    programs = pytest.importorskip("programs")
    with (
        programs.started([sys.executable, "-c", "raise SystemExit(3)"]) as server,
        pytest.raises(team.Failed, match="ended with status 3"),
    ):
        programs.await_listener(server, team.free_port())


def test_perftest_is_read_by_size_and_count() -> None:
    verbs = pytest.importorskip("bench_verbs")
    rate = verbs.Case("write_bw", 65536)
    output = f" #bytes #iterations\n 65536      {rate.iterations}   60.00    50.00     0.0008\n"
    assert verbs.parse_perftest(output, rate) == 50 * 1024 * 1024
    latency = verbs.Case("write_lat", 8)
    output = " 8       1000          65.10          190.20       105.00  \t 110.0\n"
    assert verbs.parse_perftest(output, latency) == pytest.approx(105e-6)
    with pytest.raises(team.Failed, match="ib_write_lat printed no result"):
        verbs.parse_perftest("", latency)

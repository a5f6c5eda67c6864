# SPDX-License-Identifier: Apache-2.0
"""`rdmatensor bench`: between processes here, over a real sshd, and what it says when something is wrong."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rdmatensor.bench import cluster, record
from support import sshd

PATIENCE_S = 300.0  # a busy machine copies slowly


def command(*words: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "rdmatensor", "bench", *words]
    return subprocess.run(line, capture_output=True, text=True, timeout=PATIENCE_S)


def test_hosts_are_read_line_by_line() -> None:
    text = "# two machines\nme@one 10.0.0.1\n\ntwo  # by its name\n"
    assert cluster.parse_hosts(text) == [
        cluster.Host("me@one", "10.0.0.1"),
        cluster.Host("two", "two"),
    ]
    assert cluster.parse_hosts("me@one\none")[0].address == "one"


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("one\n", "1 hosts: at least two"),
        ("one\ntwo 1 2\n", "line 2"),
        ("one\n-oProxyCommand=x\n", "line 2"),
    ],
)
def test_a_wrong_line_is_named(text: str, cause: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=cause):
        cluster.parse_hosts(text)
    path = tmp_path / "hosts"
    path.write_text(text)
    done = command("cluster", "--hosts", str(path))
    assert done.returncode == 1
    assert f"{path}: " in done.stderr


@pytest.mark.timeout(PATIENCE_S + 10)
def test_local(tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    done = command("local", "--quick", "--set", "TRANSPORTS=shm", "--json", str(file))
    assert done.returncode == 0, done.stdout + done.stderr
    run = record.Run.read(file)
    assert run.environment.transport == "shm"
    assert not run.faults
    latency = run.find("micro, Python", "write latency", 8, "rdmatensor")
    assert latency is not None
    assert len(latency.turns) == 3
    assert latency.processes[0].peak_bytes > 0
    assert run.find("micro, Python", "write bandwidth", 1 << 20, "memcpy") is not None
    for end in ("here", "the peer"):
        idle = run.find("micro, Python", f"idle, {end}", None, "rdmatensor")
        assert idle is not None
        assert idle.unit == "of a core"
    assert "write latency" in done.stdout


def test_a_setting_that_is_none_is_an_error_of_the_peer() -> None:
    done = command("local", "--quick", "--set", "TRANSPORT=shm")
    assert done.returncode == 1
    assert "the peer on this machine ended" in done.stderr
    assert "TRANSPORTS" in done.stderr  # the nearest name


def test_a_python_that_is_not_there_is_an_error() -> None:
    hosts = [cluster.Host("a"), cluster.Host("b")]
    with pytest.raises(cluster.BenchFailed, match="/nowhere/python cannot be started"):
        cluster.measure(hosts, cluster.Launcher(python="/nowhere/python"))


def test_slurm_gets_one_task_on_one_host() -> None:
    launcher = cluster.Launcher("slurm", "/opt/python", ("--partition=rdma",))
    words = launcher.command(cluster.Host("node7", "node7"), cluster.PEER)
    assert words[0] == "srun"
    assert "--nodelist=node7" in words
    assert words[-4:] == ["--partition=rdma", "/opt/python", "-m", cluster.PEER]


def test_who_does_not_answer_can_clean_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As srun, which takes its job out of the queue when it is told to end, but not when it is killed."""
    program, ended = tmp_path / "python", tmp_path / "ended"
    program.write_text(
        f"#!/bin/sh\ntrap 'touch {ended}; exit 3' TERM\nwhile :; do sleep 0.1; done\n"
    )
    program.chmod(0o700)
    monkeypatch.setattr(cluster, "START_S", 1.0)
    hosts = [cluster.Host("a"), cluster.Host("b")]
    with pytest.raises(cluster.BenchFailed, match="the peer on b ended with status 3"):
        cluster.measure(hosts, cluster.Launcher(python=str(program)))
    assert ended.exists()


@pytest.mark.timeout(PATIENCE_S + 10)
def test_a_cluster_over_ssh(tmp_path: Path) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text("127.0.0.1\n127.0.0.1\n")
    record_file = tmp_path / "run.json"
    with sshd.server(tmp_path) as given:
        options = [word for option in given for word in ("--launcher-option", option)]
        done = command(
            *("cluster", "--hosts", str(hosts), *options, "--set", "TRANSPORTS=shm"),
            *("--quick", "--json", str(record_file)),
        )
    assert done.returncode == 0, done.stdout + done.stderr
    run = record.Run.read(record_file)
    assert run.find("micro, Python", "write latency", 8, "rdmatensor") is not None
    assert not run.faults


def test_a_host_that_ssh_cannot_reach_is_named(tmp_path: Path) -> None:
    if not shutil.which("ssh"):
        pytest.skip("no OpenSSH client: apt install openssh-client")
    hosts = tmp_path / "hosts"
    hosts.write_text("127.0.0.1\n127.0.0.1\n")
    done = command(
        *("cluster", "--hosts", str(hosts)),
        *("--launcher-option", "-oPort=1", "--launcher-option", "-oConnectTimeout=5"),
    )
    assert done.returncode == 1
    assert "the peer on 127.0.0.1 ended" in done.stderr
    assert "refused" in done.stderr


def test_the_reason_of_an_end_may_come_late(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(
        "#!/bin/sh\n(sleep 0.5; echo refused >&2) >/dev/null </dev/null &\nexit 255\n"
    )
    python.chmod(0o755)
    hosts = [cluster.Host("one"), cluster.Host("two")]
    with pytest.raises(
        cluster.BenchFailed, match="ended with status 255 or did not answer: refused"
    ):
        cluster.measure(hosts, cluster.Launcher(python=str(python)), quick=True)

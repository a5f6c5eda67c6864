# SPDX-License-Identifier: Apache-2.0
"""`rdmatensor softroce run` as users call it, and what it leaves behind: nothing."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from softroce.processes import PATIENCE, Softroce, command_line, qemus_of
from support.waits import until

pytestmark = pytest.mark.usefixtures("lab")  # skips where there can be none


def test_status_streams_and_shared_folder(softroce: Softroce, tmp_path: Path) -> None:
    script = 'ibv_devices; echo err $A >&2; echo result >"$RDMATENSOR_LAB_SHARED/file"; exit 7'
    options = ("--qemu", "--shared", str(tmp_path), "--env", "A=b")
    done = softroce("run", *options, "--", "sh", "-c", script, TMPDIR=str(tmp_path))
    assert done.returncode == 7
    assert "rxe0" in done.stdout
    assert done.stderr == "err b\n"
    assert (tmp_path / "file").read_text() == "result\n"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.long
def test_timeout(softroce: Softroce, tmp_path: Path) -> None:
    done = softroce("run", "--timeout", "0.5", "--", "sleep", "1000", TMPDIR=str(tmp_path))
    assert done.returncode == 124
    assert "did not end in 0.5 s" in done.stderr
    assert not list(tmp_path.iterdir())
    assert not qemus_of(tmp_path)


@pytest.mark.long
def test_dead_guest(softroce: Softroce) -> None:
    script = "echo b >/proc/sysrq-trigger; sleep 1000"
    done = softroce("run", "--", "sh", "-c", script)
    assert done.returncode == 125
    assert "was lost" in done.stderr


def started(tmp_path: Path) -> subprocess.Popen[bytes]:
    """A run in the middle of its command."""
    # A background shell's commands have SIGINT ignored, and hand that on.
    process = subprocess.Popen(
        [
            "env",
            "--default-signal=HUP,INT,TERM",
            *command_line("run", "--", "sh", "-c", "echo started; sleep 1000"),
        ],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"started\n"
    assert len(qemus_of(tmp_path)) == 1
    return process


def test_a_killed_run_leaves_no_guest(tmp_path: Path) -> None:
    with started(tmp_path) as process:
        process.kill()
    until("QEMU survives the run", lambda: not qemus_of(tmp_path), PATIENCE)


@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.long)]
)
def test_an_interrupted_run_leaves_nothing(tmp_path: Path, number: signal.Signals) -> None:
    with started(tmp_path) as process:
        process.send_signal(number)
        assert process.wait(PATIENCE) == 128 + number
    assert not list(tmp_path.iterdir())
    assert not qemus_of(tmp_path)


THREE_HOSTS = """
cd $RDMATENSOR_LAB_SHARED
server=${RDMATENSOR_LAB_ADDRESSES%%,*}
if [ $RDMATENSOR_LAB_RANK = 0 ]; then
  # One for each client: rping's server for many (-P) crashes when two connect at once.
  for port in 7001 7002; do rping -s -a $server -p $port -C 5 & done
  until [ $(rdma resource show cm_id | grep -c LISTEN) = 2 ]; do sleep 0.05; done
  touch listening
  until [ -s 1 ] && [ -s 2 ]; do sleep 0.1; done
  echo rank 0: $(cat 1 2)
else
  until [ -e listening ]; do sleep 0.1; done
  rping -c -a $server -p 700$RDMATENSOR_LAB_RANK -C 5
  echo $? >$RDMATENSOR_LAB_RANK
  echo rank $RDMATENSOR_LAB_RANK of $RDMATENSOR_LAB_HOSTS
  exit $((5 * RDMATENSOR_LAB_RANK))
fi
"""


@pytest.mark.long
def test_three_hosts(softroce: Softroce) -> None:
    """Through a switch: each reaches the first, output is marked, the first failure is the status."""
    options = ("--hosts", "3", "--memory", "512", "--timeout", str(PATIENCE / 2))
    done = softroce("run", *options, "--", "sh", "-c", THREE_HOSTS)
    assert done.returncode == 5, done.stdout + done.stderr
    assert sorted(done.stdout.splitlines()) == ["[1] rank 1 of 3", "[2] rank 2 of 3", "rank 0: 0 0"]

# SPDX-License-Identifier: Apache-2.0
"""The launcher of the demo: tasks answer, their failures are seen, and none is left behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import team
from team import TaskFailed, Team, free_addresses

_BENCH = f"import sys; sys.path.append({str(Path(team.__file__).parent)!r})\n"
_ECHO = """
from control import Line
line = Line()
print("a library's chatter")
line.emit("ready")
line.serve({"double": lambda number: {"result": 2 * number}})
"""

_LAUNCHER = """
import pathlib, signal, sys, time
from team import Team, terminate_like_interrupt
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background shell had it ignored
with terminate_like_interrupt(), Team(pathlib.Path(sys.argv[1])) as team:
    team.start("stubborn", ["-c", "import time; time.sleep(600)", sys.argv[2]])
    print("started", flush=True)
    time.sleep(600)
"""


def _alive(mark: str) -> bool:
    for folder in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if folder.name.isdigit() and mark in (folder / "cmdline").read_text():
                return True
    return False


def test_commands_are_answered_and_chatter_is_logged(tmp_path: Path) -> None:
    with Team(tmp_path) as team:
        child = team.start("echo", ["-c", _BENCH + _ECHO])
        team.wait(child, "ready", 30)
        assert team.ask(child, "double", number=21)["result"] == 42
    assert "a library's chatter" in (tmp_path / "echo.log").read_text()


def test_the_end_of_any_task_ends_the_wait(tmp_path: Path) -> None:
    with Team(tmp_path) as team:
        waiting = team.start("waiting", ["-c", "input()"])
        team.start("failing", ["-c", "raise SystemExit('no luck')"])
        with pytest.raises(TaskFailed, match="failing exited with status 1") as failure:
            team.next_event(waiting, 30)
    assert "no luck" in failure.value.tail()


def test_a_killed_task_is_named_with_its_signal(tmp_path: Path) -> None:
    with Team(tmp_path) as team:
        child = team.start("victim", ["-c", "import os; os.kill(os.getpid(), 9)"])
        with pytest.raises(TaskFailed, match="victim was ended by SIGKILL"):
            team.next_event(child, 30)


def test_silence_has_a_deadline(tmp_path: Path) -> None:
    with Team(tmp_path) as team:
        child = team.start("silent", ["-c", "input()"])
        with pytest.raises(TaskFailed, match="silent said nothing"):
            team.next_event(child, 0.5)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_terminated_launcher_leaves_no_task(tmp_path: Path, number: signal.Signals) -> None:
    mark = f"mark-{os.getpid()}-{number}"
    command = [sys.executable, "-c", _BENCH + _LAUNCHER, str(tmp_path), mark]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as launcher:
        assert launcher.stdout is not None
        assert launcher.stdout.readline() == b"started\n"
        launcher.send_signal(number)
        launcher.wait(30)
    deadline = time.monotonic() + 10
    while _alive(mark) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not _alive(mark)


def test_addresses_differ() -> None:
    addresses = free_addresses(20)
    assert len(set(addresses)) == 20

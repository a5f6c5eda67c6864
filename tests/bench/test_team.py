# SPDX-License-Identifier: Apache-2.0
"""Processes of a benchmark: they answer, their failures are seen, and none is left behind."""

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
from team import Failed, Members, Task, Team

_BENCH = f"import sys; sys.path.append({str(Path(team.__file__).parent)!r})\n"
_ECHO = """
from member import serve
print("a library's chatter")
serve({"double": lambda number: 2 * number})
"""
_LAUNCHER = """
import signal, sys, time
from rdmatensor._tools.processes import terminate_like_interrupt
from team import Team
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background shell had it ignored
with terminate_like_interrupt(), Team() as team:
    team.start("stubborn", [sys.executable, "-c", "import time; time.sleep(600)", sys.argv[1]])
    print("started", flush=True)
    time.sleep(600)
"""


def _alive(mark: str) -> bool:
    for folder in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if folder.name.isdigit() and mark in (folder / "cmdline").read_text():
                return True
    return False


def _start(team: Team, name: str, code: str) -> Task:
    return team.start(name, [sys.executable, "-c", _BENCH + code])[0]


def test_commands_are_answered_by_all_whatever_libraries_print() -> None:
    with Team() as team:
        members = Members([_start(team, f"echo {rank}", _ECHO) for rank in range(2)])
        assert members.ask("double", number=21) == [42, 42]


def test_a_process_may_serve_several_connections() -> None:
    """As mpirun does, whose members know their rank."""
    code = """
import threading
from member import serve
for rank in range(2):
    threading.Thread(target=serve, args=({"rank": lambda rank=rank: rank}, rank)).start()
"""
    with Team() as team:
        tasks = team.start("both", [sys.executable, "-c", _BENCH + code], connections=2)
        assert Members(tasks).ask("rank") == [0, 1]


def test_the_end_of_any_task_ends_the_wait() -> None:
    with Team() as team:
        waiting = _start(team, "waiting", "input()")
        _start(team, "failing", "raise SystemExit('no luck')")
        with pytest.raises(Failed, match=r"failing exited with status 1(?s:.*)no luck"):
            waiting.answer(30)


def test_a_killed_task_is_named_with_its_signal() -> None:
    with Team() as team:
        task = _start(team, "victim", "import os; os.kill(os.getpid(), 9)")
        with pytest.raises(Failed, match="victim was ended by SIGKILL"):
            task.answer(30)


def test_a_handler_that_fails_is_told_with_its_traceback() -> None:
    with Team() as team:
        members = Members([_start(team, "broken", _ECHO)])
        with pytest.raises(Failed, match=r"broken exited with status 1(?s:.*)TypeError"):
            members.ask("double", number=None)


def test_silence_has_a_deadline() -> None:
    with Team() as team:
        task = _start(team, "silent", "input()")
        with pytest.raises(Failed, match="silent said nothing"):
            task.answer(0.5)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_terminated_benchmark_leaves_no_task(number: signal.Signals) -> None:
    mark = f"mark-{os.getpid()}-{number}"
    command = [sys.executable, "-c", _BENCH + _LAUNCHER, mark]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as launcher:
        assert launcher.stdout is not None
        assert launcher.stdout.readline() == b"started\n"
        launcher.send_signal(number)
        launcher.wait(30)
    deadline = time.monotonic() + 10
    while _alive(mark) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not _alive(mark)

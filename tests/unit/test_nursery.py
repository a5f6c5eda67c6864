# SPDX-License-Identifier: Apache-2.0
"""The tests' way to stop another process."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from pathlib import Path

from support.nursery import stands_still, state, stop
from support.waits import PATIENCE, until

RESTLESS = """
import threading
print(flush=True)
while True:
    thread = threading.Thread(target=int)
    thread.start()
    thread.join()
"""


def test_a_thread_ends_while_its_process_is_looked_at() -> None:
    thread = threading.Thread(target=int)
    thread.start()
    path = Path(f"/proc/self/task/{thread.native_id}")
    thread.join()
    until("the thread does not end", lambda: not path.exists())
    assert state(path) == "X"


def test_a_process_that_starts_and_ends_threads_is_stopped() -> None:
    with subprocess.Popen([sys.executable, "-c", RESTLESS], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            for _ in range(20):
                stop(process.pid, PATIENCE)
                assert stands_still(process.pid)
                process.send_signal(signal.SIGCONT)
                until("it does not go on", lambda: not stands_still(process.pid))
        finally:
            process.kill()

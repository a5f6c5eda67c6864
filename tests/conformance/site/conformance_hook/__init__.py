# SPDX-License-Identifier: Apache-2.0
"""What is different in a process of TensorFlow's tests while `make test SUITE=conformance` runs them.

The tests are left as they are. This package
- makes servers of protocol "grpc" such of "grpc+rdma", below TensorFlow's Python (protocol);
- writes down how each test ended (results), and what the plugin counted (counters);
- finds helpers that tests share and the wheels lack (imports);
- answers SIGUSR2 by writing the Python stacks of all threads to a file.

The variables CONFORMANCE_* are the only input; shards.py sets them.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import threading
import time
from pathlib import Path
from types import ModuleType

from . import imports, protocol, results


def install() -> None:
    """Sets everything up. Only standard modules have been imported so far."""
    answer_with_stacks()
    os.register_at_fork(after_in_child=answer_with_stacks)
    hooks: dict[str, imports.Hook] = {}
    # Worker processes, which the tests start, have no results of their own.
    if os.getppid() == int(os.environ["CONFORMANCE_PARENT"]):
        end_with_the_runner()
        hooks |= {"unittest.result": results.watch, "unittest.case": results.skip_done}
    if os.environ["CONFORMANCE_V1"] == "1":
        hooks["tensorflow"] = disable_v2
    if os.environ["CONFORMANCE_PROTOCOL"] != "grpc":
        hooks["tensorflow.python.client.pywrap_tf_session"] = protocol.switch_sessions
        hooks["tensorflow.python.pywrap_tfe"] = protocol.switch_eager
    imports.install(hooks, os.environ["CONFORMANCE_OVERLAY"])


def answer_with_stacks() -> None:
    """A file for each process: standard error may be a pipe that nobody reads any more."""
    path = Path(os.environ["CONFORMANCE_STACKS"], f"{os.getpid()}.txt")
    faulthandler.register(signal.SIGUSR2, file=path.open("w"))


def disable_v2(tensorflow: ModuleType) -> None:
    """TensorFlow's own runs of files marked v1 do this, too."""
    tensorflow.compat.v1.disable_v2_behavior()


def end_with_the_runner() -> None:
    """Ends this process and those it started once the runner is gone, which may have been killed."""
    runner = int(os.environ["CONFORMANCE_PARENT"])

    def watch() -> None:
        while os.getppid() == runner:
            time.sleep(1)
        os.killpg(0, signal.SIGKILL)  # run_process made the group

    threading.Thread(target=watch, daemon=True, name="conformance").start()

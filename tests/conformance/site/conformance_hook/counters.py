# SPDX-License-Identifier: Apache-2.0
"""What the plugin counted in this process: a file that is rewritten every second and when it ends."""

from __future__ import annotations

import atexit
import json
import multiprocessing.util
import os
import threading
from pathlib import Path
from typing import Any

INTERVAL = 1.0  # seconds; a process that is killed loses the counts of the last one

plugin: Any = None  # rdmatensor.tensorflow
watched = 0  # the process that is watched; a forked one has to watch itself


def write() -> None:
    """Raises rdmatensor.errors.Unsupported if the plugin is not loaded."""
    if watched != os.getpid():
        return  # forked: the plugin's locks may be held by threads that are not here
    path = Path(os.environ["CONFORMANCE_STATS"], f"{os.getpid()}.json")
    new = path.with_suffix(f".{threading.get_ident()}")  # this runs at exit, too
    new.write_text(json.dumps(plugin.stats()))
    new.replace(path)


def watch_plugin() -> None:
    """Starts it, once in each process."""
    global plugin, watched
    if watched == os.getpid():
        return
    # Not earlier: most processes have no servers. Not later: at exit, Python refuses some imports.
    import rdmatensor.tensorflow

    plugin, watched = rdmatensor.tensorflow, os.getpid()

    def keep_writing() -> None:
        while not ended.wait(INTERVAL):
            write()

    ended = threading.Event()
    threading.Thread(target=keep_writing, daemon=True, name="conformance").start()
    atexit.register(write)
    # Processes of multiprocessing end without atexit.
    multiprocessing.util.Finalize(None, write, exitpriority=100)

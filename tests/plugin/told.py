# SPDX-License-Identifier: Apache-2.0
"""told.py FOLDER PROGRAM ARGUMENTS: runs a program as a task of a cluster. When it ends, or is ended, its
`rdmatensor.tensorflow.stats()` are in FOLDER, in a file named after the task.
"""

from __future__ import annotations

import json
import os
import runpy
import signal
import sys
import threading
from pathlib import Path


def tell(folder: Path) -> None:
    import rdmatensor.tensorflow  # starts numpy's threads, which must have the mask of main()

    task = json.loads(os.environ["TF_CONFIG"])["task"]
    path = folder / f"{task['type']}{task['index']}.json"
    path.with_suffix(".part").write_text(json.dumps(rdmatensor.tensorflow.stats()))
    path.with_suffix(".part").rename(path)


def tell_when_ended(folder: Path) -> None:
    """A thread of its own: a server that is joined never returns to Python."""
    signal.sigwait({signal.SIGTERM})
    tell(folder)
    os._exit(128 + signal.SIGTERM)


def main() -> None:
    """See the module."""
    folder = Path(sys.argv[1])
    del sys.argv[:2]
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    threading.Thread(target=tell_when_ended, args=(folder,), daemon=True).start()
    runpy.run_path(sys.argv[0], run_name="__main__")
    tell(folder)


if __name__ == "__main__":
    main()

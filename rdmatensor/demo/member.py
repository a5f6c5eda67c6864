# SPDX-License-Identifier: Apache-2.0
"""One task of the demo as `rdmatensor launch` starts it: TF_CONFIG says which.

The argument is JSON with "steps" and "hidden". The chief trains and sends its results. The others serve until
the launcher ends them, and then send by which paths their tensors went.
"""

from __future__ import annotations

import json
import os
import signal
import sys

from rdmatensor.demo.control import Line, leave
from rdmatensor.demo.paths import require_plugin, task_paths


def main() -> None:
    """See the module."""
    # Wait for tasks that have not started yet, instead of failing the first call.
    os.environ.setdefault("GRPC_FAIL_FAST", "use_caller")
    config = json.loads(os.environ["TF_CONFIG"])
    cluster, place, protocol = config["cluster"], config["task"], config["rpc_layer"]
    line = Line()
    from rdmatensor.demo.task import start
    from rdmatensor.demo.train import Run, train

    require_plugin(protocol)
    if place["type"] == "chief":
        results = train(Run(cluster=cluster, protocol=protocol, **json.loads(sys.argv[1])), line)
        line.emit("result", **results, paths=task_paths(protocol).as_json())
        leave(0)
    _server = start(cluster, place["type"], place["index"], protocol)
    signal.sigwait([signal.SIGTERM])
    line.emit("paths", **task_paths(protocol).as_json())
    leave(0)


if __name__ == "__main__":
    # Before TensorFlow starts threads, which would take the signal.
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    main()

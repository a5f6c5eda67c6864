# SPDX-License-Identifier: Apache-2.0
"""A process of test_training.py: training_task.py FOLDER CALLS.

CALLS is JSON: by name, a case of tests/train/cases.py and its arguments. What they return, and what the group
sent, goes to FOLDER/RANK.json.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import rdmatensor.train as rt
from train import cases


def main() -> None:
    folder, calls = Path(sys.argv[1]), json.loads(sys.argv[2])
    run = rt.init(timeout=200)
    found = {name: getattr(cases, case)(**arguments) for name, (case, arguments) in calls.items()}
    if run.device is not None:
        sent = rt.statistics()["sent_bytes"]
        found["place"] = {"address": run.device.address, "sent": sent}
        rt.ops.barrier()
    (folder / f"{run.rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()

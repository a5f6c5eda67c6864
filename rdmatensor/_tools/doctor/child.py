# SPDX-License-Identifier: Apache-2.0
"""Runs a function in a process of its own, so that a crash or a hang becomes a finding."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

# The path is that of this process: in the source folder, Python would import sources that are not built.
_START = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from {module} import {function}; print(json.dumps({function}()))"
)


@dataclass(frozen=True)
class Outcome:
    """`value` is what the function returned; if it is None, `why_not` is the reason."""

    value: Any
    why_not: str
    log: list[str]


def call(module: str, function: str, seconds: float, **variables: str) -> Outcome:
    """Call a function without arguments, whose result JSON can carry. `variables` extend its environment."""
    path = json.dumps([os.path.abspath(entry) for entry in sys.path])  # noqa: PTH100 - "" is the folder
    command = [sys.executable, "-c", _START.format(module=module, function=function), path]
    try:
        done = subprocess.run(
            command,
            env={**os.environ, **variables},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Outcome(None, f"did not end within {seconds:g} s", [])
    except OSError as error:
        return Outcome(None, f"could not be started: {error}", [])
    log = done.stderr.splitlines()
    if done.returncode == 0 and done.stdout.strip():
        return Outcome(json.loads(done.stdout.splitlines()[-1]), "", log)
    if done.returncode < 0:
        return Outcome(None, f"was ended by {signal.Signals(-done.returncode).name}", log)
    return Outcome(None, log[-1] if log else f"exited with status {done.returncode}", log)

# SPDX-License-Identifier: Apache-2.0
"""Run a function in a process of its own, so that a crash or a hang becomes a finding."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..processes import ending

# The path is that of this process: in the source folder, Python would import sources that are not built.
_START = (
    "import json, sys; sys.path[:], arguments = json.loads(sys.argv[1]); "
    "from {module} import {function}; print(json.dumps({function}(*arguments)))"
)


@dataclass(frozen=True)
class Outcome:
    """`value` is what the function returned; if it is None, `why_not` is the reason."""

    value: Any
    why_not: str
    log: list[str]


def call(
    module: str, function: str, seconds: float, arguments: Sequence[Any] = (), **variables: str
) -> Outcome:
    """Call a function. JSON carries its arguments and result, and `variables` extend its environment."""
    path = [os.path.abspath(entry) for entry in sys.path]  # noqa: PTH100 - "" is the folder
    start = _START.format(module=module, function=function)
    command = [sys.executable, "-c", start, json.dumps([path, list(arguments)])]
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
    said = log[-1] if done.returncode >= 0 and log else ending(done.returncode)
    return Outcome(None, said, log)

# SPDX-License-Identifier: Apache-2.0
"""How each test began and ended: a line of JSON each, in a file that the runner reads meanwhile."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

LONGEST = 4000  # characters of an error
RANK = ("pass", "skip", "fail")  # a test that reports several has the last of them

began: dict[str, float] = {}
outcome: dict[str, tuple[str, str]] = {}


def emit(event: str, test: str, **more: object) -> None:
    """Appends a line."""
    with Path(os.environ["CONFORMANCE_EVENTS"]).open("a") as file:
        file.write(json.dumps({"event": event, "test": test, **more}) + "\n")


def name_of(test: Any) -> str:
    """The name by which a test can be run alone; what is no test, as setUpClass, has its description."""
    method = getattr(test, "_testMethodName", None)
    return f"{type(test).__name__}.{method}" if method else test.id().replace("__main__.", "")


def note(test: Any, status: str, text: str = "") -> None:
    """Takes down `status` unless something worse is known already."""
    name = name_of(test)
    if name not in began:  # setUpClass and its like
        emit("stop", f"({name})", status=status, seconds=0, text=text[:LONGEST])
    elif RANK.index(status) >= RANK.index(outcome.get(name, ("pass", ""))[0]):
        outcome[name] = (status, text[:LONGEST])


def start(test: Any) -> None:
    name = name_of(test)
    began[name] = time.monotonic()
    emit("start", name)


def stop(test: Any) -> None:
    name = name_of(test)
    since = began.pop(name, None)
    if since is not None:
        status, text = outcome.pop(name, ("pass", ""))
        emit("stop", name, status=status, seconds=time.monotonic() - since, text=text)


def failed(test: Any, error: Any) -> None:
    note(test, "fail", f"{error[0].__name__}: {error[1]}")


def failed_part(test: Any, part: Any, error: Any) -> None:
    if error is not None:
        failed(test, error)


def watch(module: ModuleType) -> None:
    """Observes every unittest.TestResult."""
    result = module.TestResult

    def before(method: str, action: Callable[..., None]) -> None:
        original = getattr(result, method)

        def observed(self: Any, *arguments: Any) -> Any:
            action(*arguments)
            return original(self, *arguments)

        setattr(result, method, observed)

    before("startTest", start)
    before("stopTest", stop)
    before("addSuccess", lambda test: note(test, "pass"))
    before("addSkip", lambda test, reason: note(test, "skip", reason))
    before("addExpectedFailure", lambda test, error: note(test, "pass"))
    before("addUnexpectedSuccess", lambda test: note(test, "fail", "unexpected success"))
    before("addFailure", failed)
    before("addError", failed)
    before("addSubTest", failed_part)
    before("stopTestRun", lambda: emit("start", "(exit)"))


def skip_done(module: ModuleType) -> None:
    """Leaves out the tests that an earlier process of this file has done."""
    events = Path(os.environ["CONFORMANCE_EVENTS"])
    lines = events.read_text().splitlines() if events.exists() else []
    done = {event["test"] for event in map(json.loads, lines) if event["event"] == "stop"}
    run = module.TestCase.run

    def run_new(self: Any, result: Any = None) -> Any:
        return None if name_of(self) in done else run(self, result)

    module.TestCase.run = run_new

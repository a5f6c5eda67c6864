# SPDX-License-Identifier: Apache-2.0
"""What the doctor makes of machines that are not here."""

from __future__ import annotations

from typing import Any

import pytest

from rdmatensor.doctor import framework, machine

MB = 1 << 20


@pytest.mark.parametrize(
    ("built", "here", "state", "remedy"),
    [
        ({"tensorflow": "2.21.0"}, "", "ok", ""),
        ({"tensorflow": "2.21.0"}, "2.21.3", "ok", ""),
        ({"tensorflow": "2.21.0"}, "2.20.0", "fail", "pip install 'tensorflow==2.21.*'"),
        ({"tensorflow": "2.20.0, 2.21.0"}, "2.20.1", "ok", ""),
        ({"tensorflow": "2.20.0, 2.21.0"}, "2.2.0", "fail", "pip install 'tensorflow==2.21.*'"),
        ({"tensorflow": "2.21.0, 2.22.0rc0"}, "2.22.0rc1", "ok", ""),
        (
            {"tensorflow": "2.21.0, 2.22.0rc0"},
            "2.19.0",
            "fail",
            "pip install 'tensorflow==2.21.*'",
        ),
        ({"tensorflow": "", "no_tensorflow_because": "asked"}, "2.21.0", "warn", "pip install"),
        ({}, "2.21.0", "warn", "pip install"),
    ],
)
def test_plugin_and_tensorflow(
    monkeypatch: pytest.MonkeyPatch, built: dict[str, Any], here: str, state: str, remedy: str
) -> None:
    monkeypatch.delenv("RDMATENSOR_DISABLE", raising=False)
    monkeypatch.setattr(framework, "build", lambda: built)
    monkeypatch.setattr(framework, "version", lambda: here)
    finding = framework.finding(thoroughly=False)
    assert finding.state == state and remedy in finding.remedy, finding


@pytest.mark.parametrize(
    ("verbs", "left", "state"),
    [
        (False, 1, "ok"),  # shared memory locks nothing
        (True, None, "ok"),  # no limit
        (True, 200 * MB, "ok"),
        (True, 64 * MB, "warn"),  # connections, but not the arena
        (True, 7 * MB, "fail"),  # not even the rings of one connection
    ],
)
def test_locked_memory(verbs: bool, left: int | None, state: str) -> None:
    sizes = {"RING_BYTES": 4 * MB, "ARENA_LIMIT": 100 * MB}
    report = {
        "registrable": left,
        "settings": [{"name": name, "number": number} for name, number in sizes.items()],
    }
    finding = machine.memlock(verbs, report)
    assert finding.state == state, finding
    assert ("ulimit -l" in finding.remedy) == (state != "ok")

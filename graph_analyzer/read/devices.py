# SPDX-License-Identifier: Apache-2.0
"""Parse device strings."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

from ..model.errors import AnalysisError

_PART = re.compile(
    r"/(?:job:(?P<job>[A-Za-z][A-Za-z0-9_]*)"
    r"|replica:(?P<replica>\d+|\*)"
    r"|task:(?P<task>\d+|\*)"
    r"|device:(?P<kind>[A-Za-z_]\w*)(?::(?P<number>\d+|\*))?"
    r"|(?P<old>cpu|gpu|CPU|GPU)(?::(?P<old_number>\d+|\*))?)"
)


def _first(*numbers: int | None) -> int:
    """Return the first number that is known, else 0."""
    return next((number for number in numbers if number is not None), 0)


class Device(NamedTuple):
    """A device, or the part of one that a string names; None means "any"."""

    job: str | None = None
    replica: int | None = None
    task: int | None = None
    kind: str | None = None
    number: int | None = None

    def or_else(self, other: Device) -> Device:
        """Complete this device from `other`. The task of another job is its first."""
        task = other if self.job in (None, other.job) else Device()
        same_kind = self.kind in (None, other.kind)
        number = self.number if self.number is not None else same_kind and other.number
        return Device(
            self.job or task.job,
            _first(self.replica, task.replica),
            _first(self.task, task.task),
            self.kind or other.kind or "CPU",
            number or 0,
        )

    def admits(self, other: Device) -> bool:
        """Return whether this names `other`, a whole device."""
        return all(own in (None, theirs) for own, theirs in zip(self, other, strict=True))

    @property
    def task_name(self) -> str:
        """The task of a whole device, "/job:worker/replica:0/task:1"."""
        return f"/job:{self.job}/replica:{self.replica}/task:{self.task}"

    @property
    def local_name(self) -> str:
        """The part behind the task of a whole device, "device:CPU:0"."""
        return f"device:{self.kind}:{self.number}"

    def __str__(self) -> str:
        return f"{self.task_name}/{self.local_name}"


@lru_cache(maxsize=4096)
def parse(text: str) -> Device:
    """Return the device that `text` names. Raises AnalysisError if it is not a device string."""
    values: dict[str, str] = {}
    position = 0
    while position < len(text):
        match = _PART.match(text, position)
        if match is None:
            raise AnalysisError(
                f"{text!r} is not a device: give, for example, '/job:worker/task:0/device:CPU:0'"
            )
        values.update((key, value) for key, value in match.groupdict().items() if value)
        position = match.end()

    def number(key: str) -> int | None:
        value = values.get(key)
        return None if value in (None, "*") else int(value or 0)

    kind = values.get("kind") or values.get("old")
    which = number("number") if "number" in values else number("old_number")
    return Device(
        values.get("job"), number("replica"), number("task"), kind and kind.upper(), which
    )


def whole(text: str, default: Device) -> Device:
    """Return the device that `text` names, completed by `default`."""
    return parse(text).or_else(default)

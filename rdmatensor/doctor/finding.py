# SPDX-License-Identifier: Apache-2.0
"""One line of the doctor's report."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

State = Literal["ok", "warn", "fail"]


@dataclass(frozen=True)
class Finding:
    """`text` is what was found, with a fault its cause; `remedy` what to do, mostly a command to copy."""

    area: str
    state: State
    text: str
    remedy: str = ""
    details: tuple[str, ...] = ()


def size(count: float) -> str:
    """Bytes for people: "64 MB"; powers of 1024, as in settings."""
    for unit in ("bytes", "KB", "MB", "GB"):
        if count < 1024:
            return f"{count:.3g} {unit}"
        count /= 1024
    return f"{count:.3g} TB"

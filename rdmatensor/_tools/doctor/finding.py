# SPDX-License-Identifier: Apache-2.0
"""One line of the doctor's report."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

State = Literal["ok", "warn", "fail"]


@dataclass(frozen=True)
class Finding:
    """`text` describes the state or the cause of a fault. `remedy` is mostly a command to copy."""

    area: str
    state: State
    text: str
    remedy: str = ""
    details: tuple[str, ...] = ()

# SPDX-License-Identifier: Apache-2.0
"""What the lab raises. Every message names the cause, and the remedy where there is one."""

from __future__ import annotations


class LabError(Exception):
    """Base of all."""


class Unavailable(LabError):
    """Something the lab needs is missing on this machine; the message says how to get it."""


class GuestDied(LabError):
    """The guest ended, by itself or by Host.kill(), while something was expected of it."""


class DeadlineExceeded(LabError):
    """What was waited for did not happen in time."""

# SPDX-License-Identifier: Apache-2.0
"""Exceptions of the lab. Each message names the cause and, if there is one, the remedy."""

from __future__ import annotations


class LabError(Exception):
    """Base class of all lab errors."""


class Unavailable(LabError):
    """Something that the lab needs is missing on this machine. The message says how to get it."""


class GuestDied(LabError):
    """The guest ended, by itself or through Host.kill(), while a caller still needed it."""


class DeadlineExceeded(LabError):
    """An operation did not finish in time."""

# SPDX-License-Identifier: Apache-2.0
"""Checks of arguments before C gets them: C would cut a text at a NUL, and take 2.7 for 2 and True for 1."""

from __future__ import annotations

import operator
from typing import Any

from .._ffi import ffi
from ..errors import UsageError

MOST = 2**64 - 1


def whole(what: str, value: Any, least: int = 0, most: int = MOST) -> int:
    """Return `value`, of Python or numpy, as an int. Raises UsageError unless it is within least..most."""
    if value.__class__ is int and least <= value <= most:
        return value
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or isinstance(value, bool) or not least <= number <= most:
        limit = "2**64 - 1" if most == MOST else "2**63 - 1" if most == 2**63 - 1 else most
        raise UsageError(f"{what} is {value!r}: give a whole number from {least} to {limit}")
    return number


def word(what: str, value: Any) -> int:
    """Return `value` as a whole number of 64 bits without a sign: 2**64 more than it if it is negative."""
    return whole(what, value, -(2**63)) & MOST


def c_text(what: str, value: Any) -> Any:
    """Return the text for C, as a `char[]` that lives as long as the returned object."""
    if not isinstance(value, str):
        raise UsageError(f"{what} is {value!r}: give a str")
    if "\0" in value:
        raise UsageError(f"{what} is {value!r}: it cannot have a NUL")
    try:
        return ffi.new("char[]", value.encode())
    except UnicodeEncodeError as error:
        raise UsageError(f"{what} is {value!r}, which is no text: {error.reason}") from None


def c_text_or_null(what: str, value: Any) -> Any:
    """Return the text for C as c_text does, or NULL for None."""
    return ffi.NULL if value is None else c_text(what, value)


def access_bits(value: Any) -> int:
    """Return the bits of an Access. Raises UsageError for another type."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= 3:
        raise UsageError(f"access is {value!r}: combine Access.READ and Access.WRITE")
    return int(value)

# SPDX-License-Identifier: Apache-2.0
"""The settings of this process. Each is also the environment variable RDMATENSOR_<NAME>.

Devices read their settings when they are opened; TensorFlow servers when they are started.
"""

from __future__ import annotations

from typing import NamedTuple

from ._api.arguments import c_text
from ._ffi import ffi, lib
from .errors import _text, check


class Setting(NamedTuple):
    """One setting: its value in force, and what it accepts."""

    name: str
    value: str
    default: str
    range: str
    doc: str


def get(name: str) -> str:
    """Return the value in force, as text. Raises UsageError for an unknown name."""
    value = ffi.new("char[]", lib.RDT_CONFIG_TEXT_SIZE)
    check(lib.rdt_config_get(c_text("name", name), value, lib.RDT_CONFIG_TEXT_SIZE))
    return _text(value)


def get_int(name: str) -> int:
    """Return the value of a numeric setting. Raises UsageError if it is unknown or not a number."""
    value = ffi.new("uint64_t *")
    check(lib.rdt_config_get_u64(c_text("name", name), value))
    return int(value[0])


def set(name: str, value: str | int) -> None:  # noqa: A001 - config.set reads well
    """Override default and environment for this process.

    Raises UsageError for an unknown name, and for a value that is not accepted.
    """
    check(lib.rdt_config_set(c_text("name", name), c_text("value", str(value))))


def table() -> list[Setting]:
    """Return all settings with their values."""
    entry = ffi.new("rdt_config_entry *")
    settings = []
    for index in range(lib.rdt_config_count()):
        check(lib.rdt_config_describe(index, entry))
        name = _text(entry.name)
        default, accepted, doc = map(_text, (entry.default_value, entry.range, entry.doc))
        settings.append(Setting(name, get(name), default, accepted, doc))
    return settings


_PAGE = """\
# Configuration

Generated from the table in `csrc/base/config.h` by `make docs`; do not edit.

To change a setting, set the environment variable `RDMATENSOR_<NAME>`, or call
`rdmatensor.config.set("<NAME>", value)` in Python. Sizes may end in K, M, G or T (powers of 1024). A value
outside its range is an error when the first device opens. A variable that is not a setting is reported with
the nearest name.

| name | default | accepted | meaning |
|---|---|---|---|
"""


def page() -> str:
    """Return docs/configuration.md: the table as Markdown."""
    return _PAGE + "".join(map(_row, table()))


def _row(setting: Setting) -> str:
    accepted = setting.range.replace("|", ", ")
    return f"| `{setting.name}` | `{setting.default}` | {accepted} | {setting.doc} |\n"

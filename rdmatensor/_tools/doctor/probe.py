# SPDX-License-Identifier: Apache-2.0
"""Examine this machine with the core, in a process of its own that child.call runs.

The core logs its choices to standard error.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ...device import Device

PREFIX = "RDMATENSOR_"
# Settings that can prevent opening a device, in the order in which they are reset.
_SUSPECTS = ("SECRET_FILE", "BIND_ADDRESS", "BIND_PORT", "TRANSPORTS")


def look(tests: bool) -> dict[str, Any]:
    """Return versions, settings, and the transports that a device finds.

    With `tests`, test transfers over each transport between two devices.
    """
    given = {name: os.environ.pop(name) for name in [*os.environ] if name.startswith(PREFIX)}
    from ... import config
    from ..._api.library import __version__

    # Without the variables, the table can be read even if the core refuses one of them.
    table = {setting.name: setting for setting in config.table()}
    refused = _put_in_force(table, given)
    os.environ.update({k: v for k, v in given.items() if k.removeprefix(PREFIX) not in table})
    settings = [
        {
            **setting._asdict(),
            "number": config.get_int(setting.name) if ".." in setting.range else None,
            "source": "environment"
            if given.get(PREFIX + setting.name) and setting.name not in refused
            else "default",
        }
        for setting in config.table()
    ]
    config.set("LOG_LEVEL", "debug")
    device, errors = _open()
    report: dict[str, Any] = {
        "version": __version__,
        "settings": settings,
        "refused": refused,
        "errors": errors,
        "address": None,
        "transports": {},
        "registrable": None,
        "cuda": _cuda(),
        "tests": {},
    }
    if device:
        with device:
            report["address"] = device.address
            report["registrable"] = device.registrable
            report["transports"] = {
                name: found._asdict() for name, found in device.transports.items()
            }
        if tests:
            report["tests"] = {
                name: _test(name) for name, found in device.transports.items() if found.usable
            }
    return report


def _cuda() -> dict[str, str]:
    """Return what CUDA's driver shows, or why it cannot be used; and why it does not share memory, if so."""
    from ..._ffi import ffi, lib
    from ...errors import RdmaError, check

    text = ffi.new("char[1024]")
    try:
        check(lib.rdt_cuda_describe(text, len(text)))
    except RdmaError as error:
        return {"text": "", "why_not": str(error), "not_shared": ""}
    found = {"text": bytes(ffi.string(text)).decode("utf-8", "replace"), "why_not": ""}
    try:
        check(lib.rdt_cuda_check_sharing(0))
    except RdmaError as error:
        return {**found, "not_shared": str(error)}
    return {**found, "not_shared": ""}


def _put_in_force(table: Mapping[str, Any], given: Mapping[str, str]) -> dict[str, str]:
    """Apply the settings of the environment. Return the reasons for those that are refused."""
    from ... import config
    from ...errors import RdmaError

    refused = {}
    for name in table:
        value = given.get(PREFIX + name)
        if not value:  # empty is unset, as in the core
            continue
        try:
            config.set(name, value)
        except RdmaError as error:
            refused[name] = str(error)
    return refused


def _open() -> tuple[Device | None, list[str]]:
    """Open a device, if necessary without the settings that prevent it, and list the errors."""
    from ... import config
    from ...device import Device
    from ...errors import RdmaError

    errors: list[str] = []
    defaults = {setting.name: setting.default for setting in config.table()}
    for name in (None, *_SUSPECTS):
        if name:
            if config.get(name) == defaults[name]:
                continue
            config.set(name, defaults[name])
        try:
            return Device(name="rdmatensor doctor"), errors
        except RdmaError as error:
            if str(error) not in errors:
                errors.append(str(error))
    return None, errors


def _test(transport: str) -> dict[str, Any]:
    """Measure writes, reads and notifications between two devices of this process."""
    import threading

    from ... import config
    from ...device import Device
    from ...errors import RdmaError
    from .. import pinging

    config.set("TRANSPORTS", transport)
    config.set("BIND_PORT", "")  # it may be for one device only
    try:
        with Device(name="doctor, near") as near, Device(name="doctor, far") as far:
            stop = threading.Event()
            echo = threading.Thread(target=pinging.echo, args=[far, stop])
            echo.start()
            try:
                with near.connect(far.address) as remote:
                    return asdict(pinging.measure(near, remote, pinging.BRIEF))
            finally:
                stop.set()
                echo.join()
    except RdmaError as error:
        return {"error": str(error)}

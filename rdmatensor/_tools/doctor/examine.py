# SPDX-License-Identifier: Apache-2.0
"""All findings about this machine, the most important first."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..._api.extras import build_info
from . import child, fabric, framework, machine, names
from .finding import Finding

_PROBE_SECONDS = 120.0
_UNKNOWN = re.compile(r"(\S+) is not a setting; the nearest is (\S+)")
_SECRET = "(umask 077; head -c 32 /dev/urandom | base64 > ~/rdmatensor.secret); export RDMATENSOR_SECRET_FILE=~/rdmatensor.secret   (the same file on all machines)"  # noqa: E501 - a command to copy


def examine(thoroughly: bool, say: Callable[[str], object]) -> Iterator[Finding]:
    """Yield findings as they are made, and describe the current work to `say`.

    `thoroughly` imports TensorFlow, which takes seconds. In the guests of the SoftRoCE lab it would take
    minutes, so it is not done there.
    """
    say("opening devices")
    probe = child.call("rdmatensor._tools.doctor.probe", "look", _PROBE_SECONDS, [True])
    report: Mapping[str, Any] = probe.value or {}
    yield library(probe)
    yield names.finding()
    if report:
        yield from settings(report, probe.log)
        yield from bootstrap(report)
        yield ports(report)
        yield secret(report)
        yield encryption(report)
        yield from fabric.findings(report, probe.log)
        yield from self_tests(report)
    yield from machine.findings(report)
    say("importing TensorFlow")
    yield framework.finding(thoroughly and "RDMATENSOR_LAB_RANK" not in os.environ)


def library(probe: child.Outcome) -> Finding:
    """Report whether the compiled library can be used."""
    if probe.value is None:
        remedy = (
            "pip install --no-build-isolation --force-reinstall .   (in the sources of rdmatensor)"
        )
        lacks = re.search(r"No module named '(numpy|cffi|_cffi_backend)", probe.why_not)
        if lacks:
            remedy = f"pip install {lacks[1].replace('_cffi_backend', 'cffi')}"
        return Finding("library", "fail", f"the core {probe.why_not}", remedy)
    built = build_info()
    text = f"rdmatensor {probe.value['version']} ({built.get('compiler', 'unknown compiler')})"
    if built.get("no_verbs_because"):
        text += f", built without verbs: {built['no_verbs_because']}"
        remedy = "apt-get install libibverbs-dev, and build again"
        return Finding("library", "warn", text, remedy)
    return Finding("library", "ok", text)


def settings(report: Mapping[str, Any], log: Sequence[str]) -> Iterator[Finding]:
    """Report variables that are not settings, and values that the core refuses."""
    sound = True
    for line in fabric.lines(log, "WARN"):
        unknown = _UNKNOWN.fullmatch(line)
        if unknown:
            sound = False
            remedy = f"unset {unknown[1]}   (or: export {unknown[2]}=...)"
            yield Finding("settings", "warn", line, remedy)
    for name, why in report["refused"].items():
        sound = False
        yield Finding("settings", "fail", why, f"unset RDMATENSOR_{name}   (docs/configuration.md)")
    if sound:
        given = [f"RDMATENSOR_{row['name']}={row['value']}" for row in report["settings"]
                 if row["source"] == "environment"]  # fmt: skip
        yield Finding("settings", "ok", ", ".join(given) or "all have their defaults")


def bootstrap(report: Mapping[str, Any]) -> Iterator[Finding]:
    """Report whether a device can be opened, and where it listens."""
    for error in report["errors"]:
        if "SECRET_FILE" in error or "ENCRYPT" in error:  # others report it
            continue
        # The port of a task that runs now is in use, as it should be.
        busy = "BIND_PORT" in error and "in use" in error
        yield Finding("device", "warn" if busy else "fail", error, _device_remedy(error))
    address = report["address"]
    if address and not report["errors"]:
        host = address.rpartition(":")[0]
        text = f"opens, and listens on {host}"
        if host in ("127.0.0.1", "[::1]"):
            text += ": only this machine can reach it, unless a program or RDMATENSOR_BIND_ADDRESS names "
            text += "another address; TensorFlow servers listen on their cluster's address"
        yield Finding("device", "ok", text)


def ports(report: Mapping[str, Any]) -> Finding:
    """Report which ports firewalls must open."""
    chosen = {row["name"]: row["value"] for row in report["settings"]}
    if chosen["BIND_PORT"] not in ("", "0"):
        text = f"open TCP {chosen['BIND_PORT']} between the hosts (RDMATENSOR_BIND_PORT)"
    else:
        text = (
            f"open TCP {_free_ports()} between the hosts, or set RDMATENSOR_BIND_PORT to open fewer"
        )
    if report["transports"].get("verbs", {}).get("usable"):
        text += "; UDP 4791 for RoCE"
    text += "; for TensorFlow, also the ports of the cluster"
    if chosen["METRICS"]:
        text += f"; TCP {chosen['METRICS'].rpartition(':')[2]} for metrics"
    return Finding("ports", "ok", text)


def _free_ports() -> str:
    """Return the range from which the kernel chooses free ports."""
    file = Path("/proc/sys/net/ipv4/ip_local_port_range")
    try:
        return "-".join(file.read_text().split())
    except OSError:
        return "32768-60999"


def _device_remedy(error: str) -> str:
    if "BIND_PORT" in error:
        return "ss -ltnp   (a task of yours may have the port; otherwise choose another)"
    if "cannot listen" in error:
        return "ip -brief address   (RDMATENSOR_BIND_ADDRESS must be one of these)"
    if "cannot resolve" in error:
        return "unset RDMATENSOR_BIND_ADDRESS   (or correct it)"
    if "TRANSPORTS" in error:
        return "unset RDMATENSOR_TRANSPORTS"
    if "open files" in error:
        return "ulimit -n unlimited"
    return ""


def secret(report: Mapping[str, Any]) -> Finding:
    """Report whether peers need a secret to connect."""
    path = os.environ.get("RDMATENSOR_SECRET_FILE", "")
    verbs = report["transports"].get("verbs", {}).get("usable")
    if path:
        for error in report["errors"]:
            if "SECRET_FILE" in error:
                command = error.rpartition(": ")[2]
                remedy = command if command.startswith(("chmod", "chown", "head")) else _SECRET
                return Finding("secret", "fail", error, remedy)
        with contextlib.suppress(OSError):
            file = Path(path).stat()
            text = f"{path}, mode {file.st_mode & 0o7777:04o}, {file.st_size} bytes"
            return Finding("secret", "ok", text)
    if os.environ.get("RDMATENSOR_INSECURE", "0") not in ("", "0"):
        text = "RDMATENSOR_INSECURE lets everyone who can reach the port read and write regions"
        return Finding("secret", "warn", text, f"unset RDMATENSOR_INSECURE; {_SECRET}")
    text = "none: other machines cannot connect"
    return Finding("secret", "warn" if verbs else "ok", text, _SECRET if verbs else "")


def encryption(report: Mapping[str, Any]) -> Finding:
    """Report whether others on the network can read what is sent."""
    chosen = {row["name"]: row["value"] for row in report["settings"]}
    if chosen["ENCRYPT"] != "on":
        return Finding("encryption", "ok", "off: who listens on the network can read tensors")
    for error in report["errors"]:
        if "ENCRYPT" in error:
            remedy = _SECRET if "SECRET_FILE" in error else "unset RDMATENSOR_ENCRYPT"
            return Finding("encryption", "fail", error, remedy)
    text = "on: connections over TCP are encrypted, or refused"
    if chosen["POLICY"] == "rdma":
        return Finding("encryption", "ok", text)
    text += "; tensors for peers that cannot be reached go by TensorFlow's gRPC, in clear text"
    return Finding("encryption", "warn", text, "export RDMATENSOR_POLICY=rdma   (fails instead)")


def self_tests(report: Mapping[str, Any]) -> Iterator[Finding]:
    """Report the results of test transfers over each transport."""
    from ...units import duration, size

    for name, result in report["tests"].items():
        if "error" in result:
            remedy = "see docs/troubleshooting.md, which lists errors by their text"
            yield Finding(f"self-test {name}", "fail", result["error"], remedy)
            continue
        speed = result["speeds"][0]
        yield Finding(
            f"self-test {name}",
            "ok",
            f"connected, wrote, read and compared: write of 8 bytes {duration(result['write']['p50'])}, "
            f"notification round trip {duration(result['round_trip']['p50'])}, "
            f"writing {size(speed['write'])}/s, reading {size(speed['read'])}/s",
        )

# SPDX-License-Identifier: Apache-2.0
"""The binding against the header, the errors against the C table, settings, the package."""

from __future__ import annotations

import contextlib
import json
import os
import re
import runpy
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import rdmatensor
from rdmatensor import config, errors
from rdmatensor._api import plugin
from rdmatensor._ffi import ffi, lib
from rdmatensor.device import DeviceStats
from support.ports import free_ports


@pytest.fixture(scope="module")
def build_ffi(root: Path) -> dict[str, Any]:
    return runpy.run_path(str(root / "rdmatensor/_build_ffi.py"))


@pytest.fixture(scope="module")
def header(build_ffi: dict[str, Any]) -> str:
    return str(build_ffi["public_header"]())


def test_every_part_of_the_public_header_is_included(root: Path, header: str) -> None:
    parts = list((root / "csrc/include/rdmatensor").glob("*.h"))
    assert len(parts) > 1
    for part in parts:
        assert part.read_text() in header


def test_every_function_of_the_header_is_bound(header: str) -> None:
    functions = set(re.findall(r"RDT_API [^;(]*?\b(rdt_\w+)\(", header))
    assert len(functions) > 40
    assert functions <= set(dir(lib))


def test_every_constant_of_the_header_is_bound(header: str) -> None:
    names = set(re.findall(r"^\s*(RDT_\w+) = -?\d+", header, re.MULTILINE))
    names |= set(re.findall(r"^#define (RDT_[A-Z_]+) \(", header, re.MULTILINE))
    assert len(names) > 25
    assert names <= set(dir(lib))


def test_cdef_has_no_preprocessor_left(build_ffi: dict[str, Any], header: str) -> None:
    text = build_ffi["declarations"](header)
    lines = [line for line in text.splitlines() if line.startswith("#")]
    names = ["RDT_CONFIG_TEXT_SIZE", "RDT_TIMEOUT_DEFAULT", "RDT_ATOMIC_SIZE"]
    assert sorted(lines) == sorted(f"#define {name} ..." for name in names)
    assert "RDT_API" not in text


def statuses() -> list[int]:
    return [getattr(lib, name) for name in dir(lib) if name.startswith("RDT_ERR_")]


def test_every_error_has_a_class_of_its_group() -> None:
    group_of = {
        "caller": (errors.UsageError, errors.Unsupported, errors.Cancelled),
        "device": (errors.DeviceError, errors.Closed),
        "connection": (errors.ConnectionFailure, errors.DeadlineExceeded, errors.DataCorrupted),
        "region": (errors.RegionError,),
    }
    assert len(statuses()) > 14
    for status in statuses():
        error = errors.error_from(status)
        group = ffi.string(lib.rdt_status_group(status)).decode()
        assert isinstance(error, group_of[group]), (status, error)
        assert isinstance(error, rdmatensor.RdmaError)
        assert error.code == status
        assert f"RDT_ERR_{error.status}" in dir(lib)
        assert ffi.string(lib.rdt_status_text(status))


def test_errors_are_what_python_expects() -> None:
    assert issubclass(rdmatensor.DeadlineExceeded, TimeoutError)
    assert issubclass(rdmatensor.ConnectionLost, ConnectionResetError)
    assert issubclass(rdmatensor.ConnectionRefused, ConnectionRefusedError)
    assert issubclass(rdmatensor.UsageError, ValueError)
    assert issubclass(rdmatensor.Closed, ValueError)
    assert issubclass(rdmatensor.DeviceError, OSError)
    assert not issubclass(rdmatensor.DataCorrupted, ConnectionError)


def test_message_is_that_of_the_library() -> None:
    with pytest.raises(rdmatensor.UsageError) as caught:
        config.get("SPIN_UZ")
    assert "SPIN_US" in str(caught.value)
    assert caught.value.status == "INVALID"


def test_settings_can_be_read_and_set() -> None:
    table = {setting.name: setting for setting in config.table()}
    assert {"LOG_LEVEL", "DEADLINE_MS", "TRANSPORTS", "SPIN_US"} <= set(table)
    for setting in table.values():
        assert setting.doc
        assert setting.range
        assert config.get(setting.name) == setting.value
        config.set(setting.name, setting.value)
    before = config.get_int("DEADLINE_MS")
    try:
        config.set("DEADLINE_MS", 1234)
        assert config.get_int("DEADLINE_MS") == 1234
        for bad in ("", "-1", "soon", "1e3", str(2**70)):
            with pytest.raises(rdmatensor.UsageError):
                config.set("DEADLINE_MS", bad)
        assert config.get("DEADLINE_MS") == "1234"
    finally:
        config.set("DEADLINE_MS", before)
    with pytest.raises(rdmatensor.UsageError):
        config.get_int("LOG_LEVEL")


def run(source: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", source],
        cwd="/",  # not in the sources
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
    )


def port_of(device: rdmatensor.Device) -> int:
    return int(device.address.rpartition(":")[2])


def test_devices_listen_on_the_ports_of_the_setting(setting: Callable[..., None]) -> None:
    (first,) = free_ports(1)
    setting("BIND_PORT", f"{first}-{first + 4}")
    with contextlib.ExitStack() as opened:
        with contextlib.suppress(OSError):  # others may have a port of the range
            opened.enter_context(socket.create_server(("127.0.0.1", first + 2)))
        devices: list[rdmatensor.Device] = []
        with pytest.raises(rdmatensor.DeviceError, match="all these ports are in use") as full:
            while len(devices) < 5:
                devices.append(opened.enter_context(rdmatensor.Device()))
        assert full.value.status == "LIMIT"
        assert f"BIND_PORT is {first}-{first + 4}, and all" in str(full.value)
        ports = [port_of(device) for device in devices]
        assert ports[0] == first and first + 2 not in ports and ports == sorted(set(ports))
        with devices[0].connect(devices[-1].address) as remote:
            remote.notify(b"hello").wait(20)


def test_one_port_is_for_one_device(setting: Callable[..., None]) -> None:
    ports = free_ports(2)
    setting("BIND_PORT", ports[0])
    with rdmatensor.Device(), rdmatensor.Device(port=ports[1]) as explicit:
        assert port_of(explicit) == ports[1]
        for remedy in (f"{ports[0]}, and that port is in use", "give a range", "end the program"):
            with pytest.raises(rdmatensor.DeviceError, match=remedy):
                rdmatensor.Device()
        with pytest.raises(
            rdmatensor.DeviceError, match=f"port {ports[1]}: Address already in use"
        ):
            rdmatensor.Device(port=ports[1])
    with rdmatensor.Device() as again:  # at once, although connections may linger
        assert port_of(again) == ports[0]


def test_settings_come_from_the_environment() -> None:
    done = run("import rdmatensor as r; print(r.config.get('SPIN_US'))", RDMATENSOR_SPIN_US="7")
    assert done.stdout == "7\n", done.stderr


def test_bad_environment_is_told_not_ignored() -> None:
    done = run("import rdmatensor as r; r.Device()", RDMATENSOR_DEADLINE_MS="soon")
    assert "RDMATENSOR_DEADLINE_MS" in done.stderr
    assert "soon" in done.stderr


def test_settings_are_documented(root: Path) -> None:
    """docs/configuration.md is what the table generates."""
    assert (root / "docs/configuration.md").read_text() == config.page(), "run: make docs"


def test_stats_are_those_of_the_header() -> None:
    """Copies of strided arrays are made, and counted, in Python."""
    counted = tuple(name for name, _ in ffi.typeof("rdt_stats").fields)
    assert DeviceStats._fields == (*counted, "copies")


def test_one_version(root: Path) -> None:
    import importlib.metadata

    stated = re.search(
        r"VERSION ([0-9.]+)", (root / "CMakeLists.txt").read_text().split("project")[1]
    )
    assert stated is not None
    assert rdmatensor.__version__ == stated.group(1)
    assert importlib.metadata.version("rdmatensor") == stated.group(1)


def test_installed_package_is_complete() -> None:
    package = Path(rdmatensor.__file__).parent
    info = json.loads((package / "_build_info.json").read_text())
    assert (package / "py.typed").exists()
    assert (package / "librdmatensor.so.0").exists()
    if info["tensorflow"]:
        plugins = {path.name for path in package.glob("librdmatensor_tensorflow_*.so")}
        minors = ["_".join(text.split(".")[:2]) for text in info["tensorflow"].split(", ")]
        assert plugins == {f"librdmatensor_tensorflow_{minor}.so" for minor in minors}
        assert plugin.SHIM.exists()
    else:
        assert info["no_tensorflow_because"]


def test_library_exports_its_api_only(header: str) -> None:
    library = Path(rdmatensor.__file__).parent / "librdmatensor.so.0"
    names = subprocess.run(
        ["nm", "-D", "--defined-only", library], capture_output=True, text=True, check=True
    ).stdout.split("\n")
    exported = {line.split()[-1] for line in names if line and line.split()[-2] in "TDBRV"}
    api = re.findall(r"RDT_API [^;(]*?\b(rdt_\w+)\(", header)
    assert exported == {f"{name}@@RDMATENSOR_0.1" for name in api}


def test_command_line_tells_what_is_installed(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "rdmatensor"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert rdmatensor.__version__ in done.stdout
    assert "DEADLINE_MS" in done.stdout


def test_import_of_sources_that_are_not_built_explains_itself(root: Path, tmp_path: Path) -> None:
    unbuilt = shutil.ignore_patterns("*.so", "__pycache__")
    shutil.copytree(root / "rdmatensor", tmp_path / "rdmatensor", ignore=unbuilt)
    (tmp_path / "CMakeLists.txt").touch()
    # -S: an editable install would add its own compiled module.
    done = subprocess.run(
        [sys.executable, "-S", "-c", "import rdmatensor as r; r.Device"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "build it" in done.stderr


def test_import_is_quick_and_starts_nothing() -> None:
    done = run(
        "import rdmatensor, os, sys\n"
        "print(len(os.listdir('/proc/self/task')), 'tensorflow' in sys.modules)",
        OPENBLAS_NUM_THREADS="1",
    )
    assert done.stdout == "1 False\n", done.stderr


def documented(value: Any) -> bool:
    return bool((value.__doc__ or "").strip())


def test_public_names_are_documented() -> None:
    for name in vars(rdmatensor)["__all__"]:
        value = getattr(rdmatensor, name)
        if isinstance(value, type):
            assert documented(value), name
            for attribute, member in vars(value).items():
                if callable(member) and not attribute.startswith("_"):
                    assert documented(member), f"{name}.{attribute}"


@pytest.mark.parametrize(
    "module", ["_api.wait", "config", "device", "group", "_api.region", "_api.transfer"]
)
def test_any_module_may_be_imported_first(module: str, tmp_path: Path) -> None:
    """As unpickling does."""
    subprocess.run([sys.executable, "-c", f"import rdmatensor.{module}"], cwd=tmp_path, check=True)

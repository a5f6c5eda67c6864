# SPDX-License-Identifier: Apache-2.0
"""What the installed libraries need of others, and what `make wheel` refuses."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import rdmatensor
from rdmatensor._api.plugin import SHIM

PACKAGE = Path(rdmatensor.__file__).parent
NAME = "rdmatensor-0.1.0-cp310-abi3-manylinux_2_34_x86_64.whl"
# What a wheel may need: the C and C++ libraries of the system, TensorFlow's when it is there, and itself.
SYSTEM = {"libc.so.6", "ld-linux-x86-64.so.2", "libm.so.6", "libgcc_s.so.1", "libstdc++.so.6"}
TENSORFLOW = {"libtensorflow_framework.so.2", "libtensorflow_cc.so.2"}


def needed(library: Path) -> set[str]:
    if shutil.which("objdump") is None:
        pytest.skip("no objdump")
    done = subprocess.run(["objdump", "-p", library], capture_output=True, text=True, check=True)
    return set(re.findall(r"NEEDED\s+(\S+)", done.stdout))


def test_core_needs_the_system_alone() -> None:
    assert needed(PACKAGE / "librdmatensor.so.0") <= SYSTEM - {"libstdc++.so.6"}
    binding = next(PACKAGE.glob("_ffi*.so"))
    for library in (binding, PACKAGE / "librdmatensor_mpi.so"):
        assert needed(library) <= {*SYSTEM - {"libstdc++.so.6"}, "librdmatensor.so.0"}, library


def test_plugins_need_tensorflow_and_bring_nothing() -> None:
    plugins = [
        *PACKAGE.glob("librdmatensor_tensorflow_*.so"),
        *PACKAGE.glob("librdmatensor_ops_*.so"),
    ]
    if not plugins:
        pytest.skip("no plugin was built")
    for plugin in plugins:
        assert needed(plugin) <= SYSTEM | TENSORFLOW | {"librdmatensor.so.0"}, plugin
    assert needed(SHIM) <= SYSTEM - {"libstdc++.so.6"}


INFO = {"tensorflow": "2.20.0, 2.21.0", "no_verbs_because": "", "sanitize": "none"}
FILES = [
    *("rdmatensor/librdmatensor.so.0", "rdmatensor/_ffi.abi3.so", "rdmatensor/_ffi.pyi"),
    *("rdmatensor/py.typed", "graph_analyzer/py.typed", "graph_analyzer/report/page.html.j2"),
    *("rdmatensor/softroce/guest/init", "tensorflow-plugins/librdmatensor_shim.so"),
    "rdmatensor/librdmatensor_tensorflow_2_20.so",
    "rdmatensor/librdmatensor_tensorflow_2_21.so",
    "rdmatensor/librdmatensor_tensorflow_2_20.layout",
    "rdmatensor/librdmatensor_tensorflow_2_21.layout",
    "rdmatensor/librdmatensor_ops_2_20.so",
    "rdmatensor/librdmatensor_ops_2_21.so",
    "rdmatensor-0.1.0.dist-info/METADATA",
    "graph_analyzer/read/ops.def",
    "graph_analyzer/parallel/page.html.j2",
    "rdmatensor/librdmatensor_mpi.so",
]


def check(root: Path, wheel: Path, files: list[str], info: dict[str, str]) -> str:
    """What .ci/check_wheel.py finds wrong with a wheel of these files."""
    with zipfile.ZipFile(wheel, "w") as archive:
        for name in files:
            archive.writestr(name, "")
        archive.writestr("rdmatensor/_build_info.json", json.dumps(info))
    command = [sys.executable, str(root / ".ci/check_wheel.py"), str(wheel)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode != 0) == bool(done.stderr), done
    return done.stderr


@pytest.mark.parametrize(
    ("name", "more", "less", "info", "fault"),
    [
        (NAME, "", "", {}, ""),
        (NAME, "", "_2_20.so", {"tensorflow": "2.21.0"}, ""),
        (NAME.replace("manylinux_2_34", "linux"), "", "", {}, "not that of a manylinux wheel"),
        (NAME.replace("cp310-abi3", "cp311-cp311"), "", "", {}, "for all Pythons"),
        (
            NAME,
            "rdmatensor.libs/libibverbs-1a2b.so.1",
            "",
            {},
            "library of others: rdmatensor.libs",
        ),
        (NAME, "tests/conftest.py", "", {}, "folder of others: tests"),
        (NAME, "", FILES[8], {}, "lacks rdmatensor/librdmatensor_tensorflow_2_20.so"),
        (NAME, "", "rdmatensor/py.typed", {}, "lacks rdmatensor/py.typed"),
        (NAME, "", FILES[9], {"tensorflow": "2.20.0, 2.21.0"}, "tensorflow_2_21.so"),
        (NAME, "", FILES[11], {}, "lacks rdmatensor/librdmatensor_tensorflow_2_21.layout"),
        (NAME, "", FILES[13], {}, "lacks rdmatensor/librdmatensor_ops_2_21.so"),
        (NAME, "", "", {"no_verbs_because": "no header"}, "no verbs: no header"),
        (NAME, "", "", {"sanitize": "thread"}, "the sanitizer thread"),
    ],
)
def test_wheels_with_faults_are_refused(
    root: Path, tmp_path: Path, name: str, more: str, less: str, info: dict[str, str], fault: str
) -> None:
    files = [*(file for file in FILES if not less or less not in file), *([more] if more else [])]
    found = check(root, tmp_path / name, files, INFO | info)
    assert fault in found and bool(fault) == bool(found)

# SPDX-License-Identifier: Apache-2.0
"""Whatever is wrong with the plugin, `import tensorflow` works; and merely installed it costs nothing."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

# What a program that only imports TensorFlow looks like from outside. Threads are counted by name,
# so that a difference says whose they are.
PROGRAM = """
import json
import tensorflow as tf
import rdmatensor.tensorflow as plugin
total = float(tf.reduce_sum(tf.ones((300, 300)) @ tf.ones((300, 300))))
try:
    tf.distribute.Server({"worker": ["127.0.0.1:0"]}, protocol="grpc+rdma", start=False)
    server = "made"
except tf.errors.NotFoundError:
    server = "no such protocol"
print(json.dumps({
    "total": total, "loaded": plugin.loaded(), "why_not": plugin.why_not(), "server": server,
}))
"""
IDLE = """
import json, pathlib
import tensorflow as tf
import rdmatensor.tensorflow as plugin
tf.reduce_sum(tf.ones((300, 300)) @ tf.ones((300, 300)))
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
maps = open("/proc/self/maps").read().splitlines()
tasks = pathlib.Path("/proc/self/task").iterdir()
print(json.dumps({
    "loaded": plugin.loaded(),
    "arena": plugin.stats()["arena"] if plugin.loaded() else None,
    "threads": sorted(task.joinpath("comm").read_text().strip() for task in tasks),
    "shared": [line for line in maps if "memfd" in line or "/dev/shm" in line],
    "reserved_kb": int(status["VmSize"].split()[0]),
}))
"""


def _python(program: str, **environment: str) -> tuple[Any, list[str]]:
    """The JSON that a program printed, and the lines of ours on its standard error."""
    run = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "2"} | environment,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert run.returncode == 0, run.stderr[-4000:]
    lines = [line for line in run.stderr.splitlines() if "rdmatensor" in line]
    return json.loads(run.stdout.splitlines()[-1]), lines


def _paths(*folders: Path) -> str:
    present = os.environ.get("PYTHONPATH")
    return os.pathsep.join([*map(str, folders), *([present] if present else [])])


@pytest.fixture
def plugins(tmp_path: Path) -> Path:
    """A folder that TensorFlow searches, as it searches the real one."""
    folder = tmp_path / "site-packages" / "tensorflow-plugins"
    folder.mkdir(parents=True)
    return folder


def _build_shim(root: Path, target: Path, minor: int) -> None:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler")
    source = root / "csrc/tensorflow/shim/shim.c"
    options = ["-shared", "-fPIC", "-D_GNU_SOURCE", f"-DRDT_TENSORFLOW_MINOR={minor}"]
    subprocess.run([compiler, *options, source, "-o", target, "-ldl"], check=True, timeout=60)


def test_wrong_version_and_broken_plugin_leave_tensorflow_unharmed(
    root: Path, plugins: Path
) -> None:
    # Two more shims beside the installed one: for another TensorFlow, and with a broken plugin.
    _build_shim(root, plugins / "librdmatensor_shim.so", 20)
    _build_shim(root, plugins / "broken_shim.so", 21)
    broken = plugins.parent / "rdmatensor"
    broken.mkdir()
    broken.joinpath("librdmatensor_tensorflow.so").write_bytes(b"not a library")
    facts, lines = _python(PROGRAM, PYTHONPATH=_paths(plugins.parent), RDMATENSOR_DISABLE="0")
    assert facts["total"] == 300.0**3
    assert facts["server"] == "made", "the installed plugin must not suffer"
    assert len(lines) == 2, lines
    version, unloadable = sorted(lines, key=lambda line: "supports TensorFlow" not in line)
    assert "supports TensorFlow 2.20.x, this is 2.21" in version
    assert "librdmatensor_tensorflow.so" in unloadable


def test_disabled_is_silent(root: Path) -> None:
    facts, lines = _python(PROGRAM, RDMATENSOR_DISABLE="1")
    assert facts["server"] == "no such protocol"
    assert not facts["loaded"]
    assert facts["why_not"] == "RDMATENSOR_DISABLE is set"
    assert not lines


def test_merely_imported_costs_no_thread_and_no_memory() -> None:
    without, _ = _python(IDLE, RDMATENSOR_DISABLE="1")
    with_plugin, lines = _python(IDLE, RDMATENSOR_DISABLE="0")
    assert with_plugin["loaded"]
    assert not without["loaded"]
    assert with_plugin["threads"] == without["threads"]
    assert with_plugin["shared"] == without["shared"]
    # The code of the plugin itself is all that is added; the arena would be gigabytes.
    assert with_plugin["reserved_kb"] - without["reserved_kb"] < 64 * 1024
    assert with_plugin["arena"]["active"] is False
    assert not lines


def test_without_tensorflow_the_module_says_what_to_do() -> None:
    facts, _ = _python(
        "import json, rdmatensor.tensorflow as p\n"
        "try:\n    p.stats()\nexcept Exception as e:\n"
        "    print(json.dumps({'loaded': p.loaded(), 'error': type(e).__name__, 'text': str(e)}))"
    )
    assert facts["loaded"] is False
    assert facts["error"] == "Unsupported"
    assert "import tensorflow first" in facts["text"]

# SPDX-License-Identifier: Apache-2.0
"""Whatever is wrong with the plugin, `import tensorflow` works; and merely installed it costs nothing."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import rdmatensor
from rdmatensor._tools.doctor import framework
from support import tools

# What a program that only imports TensorFlow looks like from outside, before it makes a server. Threads are
# counted by name, so that a difference says whose they are.
PROGRAM = """
import json, pathlib
import tensorflow as tf
import rdmatensor.tensorflow as plugin
total = float(tf.reduce_sum(tf.ones((300, 300)) @ tf.ones((300, 300))))
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
maps = open("/proc/self/maps").read().splitlines()
tasks = pathlib.Path("/proc/self/task").iterdir()
facts = {
    "total": total,
    "loaded": plugin.loaded(),
    "why_not": plugin.why_not(),
    "arena": plugin.stats()["arena"] if plugin.loaded() else None,
    "threads": sorted(task.joinpath("comm").read_text().strip() for task in tasks),
    "shared": [line for line in maps if "memfd" in line or "/dev/shm" in line],
    "reserved_kb": int(status["VmSize"].split()[0]),
}
try:
    tf.distribute.Server({"worker": ["127.0.0.1:0"]}, protocol="grpc+rdma", start=False)
    facts["server"] = "made"
except tf.errors.NotFoundError:
    facts["server"] = "no such protocol"
print(json.dumps(facts))
"""
# The JSON that a program printed, and the lines of ours on its standard error.
Said = tuple[Any, list[str]]


def _start(program: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", program],
        env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "2"} | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _end(process: subprocess.Popen[str]) -> Said:
    out, errors = process.communicate(timeout=100)
    assert process.returncode == 0, errors[-4000:]
    lines = [line for line in errors.splitlines() if "rdmatensor" in line]
    return json.loads(out.splitlines()[-1]), lines


@pytest.fixture(scope="module")
def disabled_and_not() -> tuple[Said, Said]:
    """What the program says with the plugin disabled, and as it is installed."""
    # Which of TensorFlow's threads allocates is chance, and the C library reserves 64 MB for each one that
    # does unless all of them share an arena.
    disabled, installed = (
        _start(PROGRAM, RDMATENSOR_DISABLE=value, MALLOC_ARENA_MAX="1") for value in "10"
    )
    return _end(disabled), _end(installed)


def _paths(*folders: Path) -> str:
    present = os.environ.get("PYTHONPATH")
    return os.pathsep.join([*map(str, folders), *([present] if present else [])])


@pytest.fixture
def plugins(tmp_path: Path) -> Path:
    """A folder that TensorFlow searches, as it searches the real one."""
    folder = tmp_path / "site-packages" / "tensorflow-plugins"
    folder.mkdir(parents=True)
    return folder


def _build(target: Path, *options: str | Path) -> None:
    command = [
        tools.compiler(),
        "-shared",
        "-fPIC",
        "-D_GNU_SOURCE",
        *options,
        "-o",
        target,
        "-ldl",
    ]
    subprocess.run(command, check=True, timeout=60)


def _build_shim(root: Path, target: Path, minors: str) -> None:
    sources = sorted((root / "csrc/tensorflow/shim").glob("*.c"))
    _build(target, f"-DRDT_TENSORFLOW_MINORS={minors}", *sources)


def _plugin(plugins: Path, minor: int, kind: str) -> Path:
    """A file of a plugin ("so", "layout") beside the shim in `plugins`."""
    folder = plugins.parent / "rdmatensor"
    folder.mkdir(exist_ok=True)
    return folder / f"librdmatensor_tensorflow_2_{minor}.{kind}"


def _installed_layout(minor: int) -> str:
    folder = Path(rdmatensor.__file__).parent
    return (folder / f"librdmatensor_tensorflow_2_{minor}.layout").read_text()


def test_wrong_version_and_broken_plugin_leave_tensorflow_unharmed(
    root: Path, plugins: Path
) -> None:
    minor = int(framework.version().split(".")[1])
    # Two more shims beside the installed one: for other TensorFlows, and with a broken plugin.
    _build_shim(root, plugins / "librdmatensor_shim.so", f"2,{minor}0")
    _build_shim(root, plugins / "broken_shim.so", str(minor))
    broken = _plugin(plugins, minor, "so")
    broken.write_bytes(b"not a library")
    _plugin(plugins, minor, "layout").write_text(_installed_layout(minor))
    environment = {"PYTHONPATH": _paths(plugins.parent), "RDMATENSOR_DISABLE": "0"}
    facts, lines = _end(_start(PROGRAM, **environment))
    assert facts["total"] == 300.0**3
    assert facts["server"] == "made", "the installed plugin must not suffer"
    assert len(lines) == 2, lines
    version, unloadable = sorted(lines, key=lambda line: "supports TensorFlow" not in line)
    assert f"supports TensorFlow 2.2.x and 2.{minor}0.x, this is 2.{minor}." in version
    assert broken.name in unloadable


UNPLUGGED = """
import ctypes, json, os
os.environ["RDMATENSOR_DISABLE"] = "1"  # the installed plugin
import tensorflow as tf
os.environ["RDMATENSOR_DISABLE"] = "0"
shim = ctypes.CDLL({!r})
try:
    tf.distribute.Server({{"worker": ["127.0.0.1:0"]}}, protocol="grpc+rdma", start=False)
    server = "made"
except tf.errors.NotFoundError:
    server = "no such protocol"
total = float(tf.reduce_sum(tf.ones((300, 300)) @ tf.ones((300, 300))))
why = ctypes.string_at(ctypes.addressof(ctypes.c_char.in_dll(shim, "rdt_shim_reason"))).decode()
print(json.dumps({{"total": total, "server": server, "why": why}}))
"""


@pytest.mark.long
def test_another_build_of_the_same_version_is_refused(root: Path, plugins: Path) -> None:
    """The installed plugin, with a record in which TensorFlow's allocator has one virtual function more."""
    minor = int(framework.version().split(".")[1])
    installed = Path(rdmatensor.__file__).parent
    shutil.copytree(installed, plugins.parent / "rdmatensor", ignore=lambda _, __: ["softroce"])
    shim = plugins / "librdmatensor_shim.so"
    _build_shim(root, shim, str(minor))
    fits = _end(_start(UNPLUGGED.format(str(shim)), RDMATENSOR_DISABLE="1"))
    assert fits == ({"total": 300.0**3, "server": "made", "why": ""}, [])

    layout = _installed_layout(minor)
    (size,) = re.findall(r"^(\d+) _ZTVN3tsl9AllocatorE$", layout, re.MULTILINE)
    doctored = layout.replace(f"{size} _ZTVN3tsl9A", f"{int(size) + 8} _ZTVN3tsl9A")
    _plugin(plugins, minor, "layout").write_text(doctored)
    facts, lines = _end(_start(UNPLUGGED.format(str(shim)), RDMATENSOR_DISABLE="1"))
    assert facts["total"] == 300.0**3
    assert facts["server"] == "no such protocol"
    said = f"_ZTVN3tsl9AllocatorE has {size} bytes, not {int(size) + 8}"
    assert said in facts["why"]
    assert len(lines) == 1 and said in lines[0]
    assert "install rdmatensor from its sources" in lines[0]


def test_record_tells_functions_and_messages_apart() -> None:
    layout = _installed_layout(int(framework.version().split(".")[1]))
    assert layout.startswith(f"TensorFlow {framework.version()}\n")
    for name in (
        "_ZTVN10tensorflow10GrpcServerE",
        "_ZTVN10tensorflow20BaseRemoteRendezvousE",
        "_ZTIN10tensorflow12TensorBufferE",
        "_ZN10tensorflow30_ConfigProto_default_instance_E",
    ):
        assert re.search(rf"^[1-9]\d* {name}$", layout, re.MULTILINE), name


# Stands for libtensorflow_cc.so.2 of some version.
CORE = """
const char *TF_Version(void) {{ return "{}"; }}
char small[8] = "small", large[512] = "large";
"""
# Says that it was loaded, by its name.
PLUGIN = """
#include <stdio.h>
__attribute__((constructor)) static void say(void) {{ fprintf(stderr, "plugin {}\\n"); }}
"""


@pytest.mark.parametrize(
    ("version", "said"),
    [
        ("2.20.0", "plugin 20"),
        ("2.21.1-rc0", "plugin 21"),
        ("2.22.0", "plugin 22"),
        ("2.2.0", "supports TensorFlow 2.20.x, 2.21.x and 2.22.x, this is 2.2.0"),
        ("12.20.0", "this is 12.20.0"),
        ("2.20", "this is 2.20"),
    ],
)
def test_plugin_is_chosen_by_version(
    root: Path, plugins: Path, tmp_path: Path, version: str, said: str
) -> None:
    assert said in _chosen(root, plugins, tmp_path, version, "TensorFlow 2\n8 small\n512 large\n")


@pytest.mark.parametrize(
    ("layout", "said"),
    [
        ("TensorFlow 2.21.7\n8 small\n512 large", "plugin 21"),
        (
            "TensorFlow 2.21.7\n8 small\n520 large\n",
            "TensorFlow 2.21.0 is another build than the 2.21.7 that the plugin was made for "
            "(large has 512 bytes, not 520)",
        ),
        ("TensorFlow 2.21.7\n8 huge\n", "(huge is missing)"),
        ("TensorFlow 2.21.7\n8 TF_Versio\n", "(TF_Versio is missing)"),
        ("TensorFlow 2.21.7\n8 small\nlarge\n", "damaged: install rdmatensor again"),
        ("", "damaged: install rdmatensor again"),
        (None, "librdmatensor_tensorflow_2_21.layout is missing: install rdmatensor again"),
    ],
)
def test_layout_is_compared(
    root: Path, plugins: Path, tmp_path: Path, layout: str | None, said: str
) -> None:
    assert said in _chosen(root, plugins, tmp_path, "2.21.0", layout)


def _chosen(root: Path, plugins: Path, tmp_path: Path, version: str, layout: str | None) -> str:
    """The one line that the shim or the plugin that it loads says in a TensorFlow of that version."""
    core, shim = tmp_path / "libtensorflow_cc.so.2", plugins / "librdmatensor_shim.so"
    for minor in (20, 21, 22):
        source = tmp_path / f"{minor}.c"
        source.write_text(PLUGIN.format(minor))
        _build(_plugin(plugins, minor, "so"), source)
        if layout is not None:
            _plugin(plugins, minor, "layout").write_text(layout)
    source = tmp_path / "core.c"
    source.write_text(CORE.format(version))
    _build(core, "-Wl,-soname,libtensorflow_cc.so.2", source)
    _build_shim(root, shim, "20,21,22")
    program = f"import ctypes; ctypes.CDLL({str(core)!r}); ctypes.CDLL({str(shim)!r})"
    process = _start(program, RDMATENSOR_DISABLE="0")
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    (line,) = errors.splitlines()
    return line


def test_disabled_is_silent(disabled_and_not: tuple[Said, Said]) -> None:
    facts, lines = disabled_and_not[0]
    assert facts["server"] == "no such protocol"
    assert not facts["loaded"]
    assert facts["why_not"] == "RDMATENSOR_DISABLE is set"
    assert not lines


def test_merely_imported_costs_no_thread_and_no_memory(disabled_and_not: tuple[Said, Said]) -> None:
    (without, _), (with_plugin, lines) = disabled_and_not
    assert with_plugin["loaded"]
    assert not without["loaded"]
    assert with_plugin["threads"] == without["threads"]
    assert with_plugin["shared"] == without["shared"]
    # The code of the plugin itself is all that is added; the arena would be gigabytes.
    assert with_plugin["reserved_kb"] - without["reserved_kb"] < 16 * 1024
    assert with_plugin["arena"]["active"] is False
    assert not lines


def test_without_tensorflow_the_module_says_what_to_do() -> None:
    program = (
        "import json, rdmatensor.tensorflow as p\n"
        "try:\n    p.stats()\nexcept Exception as e:\n"
        "    print(json.dumps({'loaded': p.loaded(), 'error': type(e).__name__, 'text': str(e)}))"
    )
    facts, _ = _end(_start(program))
    assert facts["loaded"] is False
    assert facts["error"] == "Unsupported"
    assert "import tensorflow first" in facts["text"]

# SPDX-License-Identifier: Apache-2.0
"""A wheel that is built here: the same bytes each time, complete, with types that say what there is."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

from support import tools

# A program of somebody who uses rdmatensor with types. What is marked is wrong, for that reason.
CONSUMER = """\
from __future__ import annotations

import numpy as np
import numpy.typing as npt

import graph_analyzer
import rdmatensor
import rdmatensor.tensorflow as plugin


async def both(device: rdmatensor.Device, address: str) -> npt.NDArray[np.float32]:
    region: rdmatensor.Region = device.allocate((4, 4), "float32", name="weights")
    remote: rdmatensor.RemoteDevice = device.connect(address, timeout=1.0)
    theirs = remote.region("weights")
    done: rdmatensor.Transfer = theirs.write(region.array, offset=16, notify=7)
    await done
    done.wait(timeout=0.5)
    notification = device.next_notification(timeout=1)
    print(notification.source.name.upper(), notification.payload.decode())
    with rdmatensor.Group(device, rank=0, size=1) as group:
        group.all_reduce(region.array, op="sum")
        group.all_reduce(region.array, op="average")  # wrong: arg-type
    theirs.write(region.array, offset="16")  # wrong: arg-type
    done.wait("soon")  # wrong: arg-type
    device.conect(address)  # wrong: attr-defined
    return np.zeros(4, np.float32)


def look() -> int:
    if not plugin.loaded():
        print(plugin.why_not().upper())
    stats = plugin.stats()
    print(stats["paths"]["statik"])  # wrong: typeddict-item
    plugin.use(policy="rdma", transport=["verbs"], require=True)
    plugin.use(policy="always")  # wrong: arg-type
    sent: str = stats["paths"]["static"]["sent_bytes"]  # wrong: assignment
    print(sent, rdmatensor.config.get_int("DEADLINE_MS") + 1)
    return stats["paths"]["static"]["sent_bytes"]


def analyse(model: object) -> float:
    plan = graph_analyzer.analyze(model, strategy=graph_analyzer.PlacedOn(ps=2, workers=2))
    graph_analyzer.to_html(plan, "plan.html")
    plan.to_htm("plan.html")  # wrong: attr-defined
    return plan.static_share


def fail() -> None:
    try:
        rdmatensor.empty((2, 2), "float32")
    except rdmatensor.DeviceError as error:
        wrong: int = error.hint  # wrong: attr-defined
        print(wrong)
"""

BUILD = "import setuptools.build_meta as b, sys; b.build_wheel(sys.argv[1])"
SOURCES = ["CMakeLists.txt", "LICENSE", "README.md", "pyproject.toml", "setup.py"]
FOLDERS = ["csrc", "graph_analyzer", "rdmatensor"]
SECONDS = 400


def build(root: Path, place: Path) -> Path:
    """The wheel of a copy of the sources, without TensorFlow's plugin, which takes minutes."""
    sources = place / "sources"
    sources.mkdir(parents=True)
    for name in SOURCES:
        shutil.copy(root / name, sources)
    for name in FOLDERS:
        ignored = shutil.ignore_patterns("__pycache__", "*.so")
        shutil.copytree(root / name, sources / name, ignore=ignored, copy_function=shutil.copy)
    done = subprocess.run(
        [sys.executable, "-c", BUILD, place],
        cwd=sources,
        env=os.environ | {"SOURCE_DATE_EPOCH": "1700000000", "RDMATENSOR_BUILD_TENSORFLOW": "OFF"},
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    (wheel,) = place.glob("*.whl")
    return wheel


def contents(wheel: Path) -> dict[str, tuple[object, ...]]:
    """Of each file what it is, to tell which of them differs."""
    with zipfile.ZipFile(wheel) as archive:
        return {
            each.filename: (
                hashlib.sha256(archive.read(each)).hexdigest(),
                each.date_time,
                each.external_attr,
            )
            for each in archive.infolist()
        }


@pytest.fixture(scope="module")
def wheel(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("setuptools", minversion="77")
    tools.cmake()
    return build(root, tmp_path_factory.mktemp("wheel"))


@pytest.mark.long
@pytest.mark.timeout(2 * SECONDS)
def test_two_builds_are_equal(wheel: Path, root: Path, tmp_path: Path) -> None:
    """Anybody can check what was published, also in a folder whose name has another length."""
    second = build(root, tmp_path / "another-folder")
    assert contents(wheel) == contents(second)
    assert wheel.read_bytes() == second.read_bytes()


def test_wheel_has_all_files_of_its_packages(wheel: Path, root: Path) -> None:
    made = {".py", ".so", ".pyc", ".layout", ".json", ".o", ".0", ".dylib"}
    files = [
        path.relative_to(root).as_posix()
        for name in ("graph_analyzer", "rdmatensor")
        for path in (root / name).rglob("*")
        if path.is_file() and path.suffix not in made and "__pycache__" not in path.parts
    ]
    assert "graph_analyzer/parallel/page.html.j2" in files
    assert set(files) <= set(zipfile.ZipFile(wheel).namelist())


# Runs in the interpreter of an environment that has the wheel: each command, and pages that need files.
COMMANDS = """\
import sys
from click.testing import CliRunner
import graph_analyzer, rdmatensor
from graph_analyzer import Options, TransferPlan
from rdmatensor.cli import COMMANDS, main

def run(*words):
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 0, (words, done.output, done.exception)

for package in (graph_analyzer, rdmatensor):
    assert package.__file__.startswith(sys.prefix), package.__file__
for name in COMMANDS:
    run(name, "--help")
TransferPlan(("/job:worker/replica:0/task:0",), Options(), (), ()).save("plan.json")
run("plan", "plan.json", "--html", "plan.html")
run("plan", "--parallel", "vgg_a", "--gflops", "1000", "--html", "parallel.html")
run("topology", "--help")
run("doctor", "--info")
"""


@pytest.mark.timeout(2 * SECONDS)
def test_commands_run_from_the_wheel(wheel: Path, tmp_path: Path) -> None:
    pytest.importorskip("jinja2")
    python = installed(wheel, tmp_path)
    (tmp_path / "work").mkdir()
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        [python, "-c", COMMANDS], cwd=tmp_path / "work", env=environment,
        capture_output=True, text=True, timeout=SECONDS,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    for page in ("plan.html", "parallel.html"):
        assert "<svg" in (tmp_path / "work" / page).read_text()


def installed(wheel: Path, place: Path) -> Path:
    """Install a wheel into a fresh environment, which takes other packages from here; return its Python."""
    venv.create(place / "venv")
    (site,) = place.glob("venv/lib/python*/site-packages")
    zipfile.ZipFile(wheel).extractall(site)
    (site / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return place / "venv/bin/python"


@pytest.mark.timeout(2 * SECONDS)
def test_strict_consumer(wheel: Path, tmp_path: Path) -> None:
    """The program is a user's, and the package is where pip puts it."""
    pytest.importorskip("mypy", reason="no mypy")
    python = installed(wheel, tmp_path)
    program = tmp_path / "consumer.py"
    program.write_text(CONSUMER)
    done = subprocess.run(
        [
            *(sys.executable, "-m", "mypy", "--strict", "--config-file=", "--no-error-summary"),
            *("--python-executable", python),
            *("--cache-dir", tmp_path / "cache", program.name),
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode in (0, 1), done.stderr
    found = re.findall(r"^consumer\.py:(\d+): error: .*\[([\w-]+)\]$", done.stdout, re.MULTILINE)
    wanted = [
        (str(number), line.split("# wrong: ")[1])
        for number, line in enumerate(CONSUMER.splitlines(), 1)
        if "# wrong: " in line
    ]
    assert found == wanted, done.stdout

# SPDX-License-Identifier: Apache-2.0
"""What every test may use."""

from __future__ import annotations

import fcntl
import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

import rdmatensor
from support import ROOT, TESTS, WHOLE, cuda_tensors, failure_table, tools

# Programs that tests start, here and in guests of the lab, import `support` too.
os.environ["PYTHONPATH"] = os.pathsep.join(
    [str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])]
)

# The core and the Python API are complete without TensorFlow, and so are their tests.
collect_ignore = [] if importlib.util.find_spec("tensorflow") else ["plugin", "demo", "analyzer"]
# How the C and C++ unit programs are built: none, address or thread (make sanitize).
SANITIZE = os.environ.get("RDMATENSOR_TEST_SANITIZE", "none")
# They share a guest, which is busy for as long as all other labs.
ONE_GUEST = ("test_transport_suite.py", "test_tensorflow.py")


@pytest.hookimpl(optionalhook=True)  # of pytest-xdist
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Where several processes run the tests (-n), they take whole files. Labs are costly to boot: one process
    has what needs a guest for long, another one all else that needs labs."""
    from xdist.scheduler import LoadScopeScheduling

    class Scheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.split("::")[0]
            if "/softroce/" not in file:
                return file
            return "one guest" if file.endswith(ONE_GUEST) else "labs"

    return Scheduling(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave long forms out. What takes long comes first: nobody is to wait for it in the end."""
    if not WHOLE:
        long = [item for item in items if item.get_closest_marker("long")]
        config.hook.pytest_deselected(items=long)
        items[:] = [item for item in items if item not in long]

    def turn(item: pytest.Item) -> int:
        if item.path.parent.name != "softroce":
            return 2
        return int(item.path.name not in ONE_GUEST)

    items.sort(key=turn)


class _Namer:
    """Names each failure at once: a run that is cut off has no summary."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        terminal = self._config.pluginmanager.get_plugin("terminalreporter")
        if report.failed and terminal is not None:
            terminal.ensure_newline()
            terminal.write_line(f"FAILED {report.nodeid} ({report.when})")


# An example takes as long as a busy machine needs.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Namer(config))


@pytest.fixture(scope="session")
def root() -> Path:
    """The folder of the sources."""
    return ROOT


@pytest.fixture(scope="session", autouse=True)
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Tests run outside the sources: a Python started there would import those, which are not built."""
    before = Path.cwd()
    os.chdir(tmp_path_factory.mktemp("elsewhere"))
    yield
    os.chdir(before)


@pytest.fixture
def setting() -> Iterator[Callable[[str, str | int], None]]:
    """setting(name, value): changes a setting of this process until the test ends."""
    with ExitStack() as changed:

        def change(name: str, value: str | int) -> None:
            changed.callback(rdmatensor.config.set, name, rdmatensor.config.get(name))
            rdmatensor.config.set(name, str(value))

        yield change


@pytest.fixture
def note(request: pytest.FixtureRequest) -> Callable[..., None]:
    """note(fault, what the user sees, seconds until then, what goes on): a row of docs/failure.md."""
    places = {"plugin": failure_table.TENSORFLOW, "softroce": failure_table.VERBS}
    tested = os.environ.get("RDMATENSOR_TEST_TRANSPORT", failure_table.SHM)

    def add(
        fault: str, seen: BaseException | str, seconds: float | None, then: str, where: str = ""
    ) -> None:
        place = where or places.get(request.path.parent.name, tested)
        text = failure_table.describe(seen)
        failure_table.note(failure_table.Row(fault, place, text, seconds, then))

    return add


@pytest.fixture(scope="session")
def programs(root: Path) -> Path:
    """The folder with the built programs."""
    cmake, ninja = tools.cmake(), tools.tool("ninja")
    folder = root / "build" / f"unit-{SANITIZE}"
    generator = ["-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={ninja}"] if ninja else []
    settings = [
        *("-DRDT_BUILD_TESTS=ON", "-DRDT_BUILD_TENSORFLOW=AUTO", f"-DRDT_SANITIZE={SANITIZE}"),
        f"-DPython3_EXECUTABLE={sys.executable}",
    ]
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:  # there may be several processes of tests
        fcntl.flock(lock, fcntl.LOCK_EX)
        for command in (
            [cmake, "-S", str(root), "-B", str(folder), *generator, *settings],
            [cmake, "--build", str(folder), "--parallel", "2", "--target", "unit_programs"],
        ):
            done = subprocess.run(command, capture_output=True, text=True, timeout=300)
            assert done.returncode == 0, done.stdout + done.stderr
    return folder / "unit"


@pytest.fixture(scope="session")
def cuda_driver(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The path of a stand-in for CUDA's driver, that no other process finds: support/cuda_driver.c.

    For `make gpu`, the name of the driver itself.
    """
    name = "libcuda.so.1"
    if cuda_tensors.ON_GPU:
        return name
    path = str(tmp_path_factory.mktemp("cuda") / name)
    names = ("cuda_driver.c", "cuda_host.c", "cuda_streams.c")
    sources = [str(TESTS / "support" / each) for each in names]
    flags = ["-O2", "-shared", "-fPIC", "-fvisibility=hidden", "-pthread", "-D_GNU_SOURCE"]
    command = ["cc", *flags, f"-Wl,-soname,{name}", "-o", path, *sources]
    subprocess.run(command, check=True, timeout=100)
    return path

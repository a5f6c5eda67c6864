# SPDX-License-Identifier: Apache-2.0
"""Servers shared by the tests: starting TensorFlow takes seconds, so few clusters serve many tests."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

pytest.importorskip("tensorflow", reason="TensorFlow is not installed")

import tensorflow as tf

import rdmatensor.tensorflow
from support import tools

if not rdmatensor.tensorflow.loaded():
    # Not a skip: with TensorFlow installed, a plugin that is missing is a defect.
    raise RuntimeError(f"no plugin: {rdmatensor.tensorflow.why_not()}")

from plugin.hostile import steps
from support.clusters import Cluster

__all__ = ["steps"]

READ = {"RDMATENSOR_TEST_ALIAS_BYTES": "1T"}
UNPLANNED = {"RDMATENSOR_PLAN": "off"}


def _two_workers(folder: Path, settings: dict[str, str]) -> Iterator[Cluster]:
    cluster = Cluster.pair(folder, settings)
    yield cluster
    cluster.close()


@pytest.fixture(scope="session")
def shared_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """With the default settings."""
    yield from _two_workers(tmp_path_factory.mktemp("planned"), {})


@pytest.fixture(scope="session")
def planned_reading_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Lent tensors are read into the receiver's memory."""
    yield from _two_workers(tmp_path_factory.mktemp("planned_reading"), READ)


@pytest.fixture(scope="session")
def dynamic_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """No tensor has a place before it is sent; the receiver uses it in the sender's memory."""
    yield from _two_workers(tmp_path_factory.mktemp("dynamic"), UNPLANNED)


@pytest.fixture(scope="session")
def reading_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """The same, but it is read into the receiver's memory, as over transports that cannot map."""
    yield from _two_workers(tmp_path_factory.mktemp("reading"), UNPLANNED | READ)


@pytest.fixture
def cluster(request: pytest.FixtureRequest) -> Cluster:
    """Two workers over grpc+rdma, with counters at zero. See clusters.EVERY_WAY."""
    shared: Cluster = request.getfixturevalue(getattr(request, "param", "shared_cluster"))
    shared.reset_stats()
    return shared


@pytest.fixture
def own_cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Two workers over grpc+rdma that no other test uses: they may be killed."""
    cluster = Cluster.pair(tmp_path)
    yield cluster
    cluster.close()


def _compiled(name: str, root: Path, folder: Path, *more: str | Path) -> Path:
    """A library made of `name`.c, to be loaded into servers. `more`: files and options for the compiler."""
    library = folder / f"lib{name}.so"
    source = Path(__file__).with_name(f"{name}.c")
    options = [
        "-shared",
        "-fPIC",
        "-O1",
        "-D_GNU_SOURCE",
        f"-I{root / 'csrc/include'}",
        "-lpthread",
    ]
    subprocess.run(
        [tools.compiler(), *options, source, "-o", library, "-ldl", *more], check=True, timeout=60
    )
    return library


@pytest.fixture(scope="session")
def faults_library(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """faults.c"""
    return _compiled("faults", root, tmp_path_factory.mktemp("faults"))


@pytest.fixture(scope="session")
def delays_library(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """delays.c"""
    return _compiled("delays", root, tmp_path_factory.mktemp("delays"))


@pytest.fixture(scope="session")
def device_library(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """pluggable_device.c, and its parts"""
    tensorflow = Path(tf.sysconfig.get_lib())
    libraries = [f"-l:libtensorflow_{name}.so.2" for name in ("framework", "cc")]
    folder = tmp_path_factory.mktemp("pluggable_device")
    parts = [Path(__file__).with_name(f"pluggable_{part}.c") for part in ("streams", "kernels")]
    return _compiled(
        "pluggable_device", root, folder, *parts, "-fvisibility=hidden",
        "-isystem", str(tensorflow / "include"), f"-L{tensorflow}", *libraries,
    )  # fmt: skip

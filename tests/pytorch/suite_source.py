# SPDX-License-Identifier: Apache-2.0
"""The tests of torch's repository that can be had for any backend, for one backend."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import sys
import unittest
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from support import suites

# Where ours is meant to differ, and why.
DIFFERENT = {
    "test_noncontiguous_all_to_all_error": "strided tensors are taken",
    "test_put_argument_validation_is_rank_local": "a tensor that is put need not be registered",
}
# What a backend may say of itself in c10d_backend_common.
ABLE = (
    "supports_coalescing",
    "supports_bitwise_reductions",
    "supports_dropped_p2p_work",
    "supports_gather_single",
)


def check_version(source: Path, installed: str) -> None:
    """Raise ValueError unless the tests are those of the torch that is installed."""
    more = ", or name another torch, such as TORCH="
    suites.check_version("torch", source / "version.txt", "(.+)", "v", installed, more)


def cases(source: Path, backend: str) -> Iterator[type[unittest.TestCase]]:
    """Yield the classes of tests for a backend. Their processes are forked."""
    import torch
    import torch.testing._internal.common_distributed as common
    from torch.testing._internal.distributed import fake_pg  # noqa: F401 - some tests take it for known

    if backend == "rdmatensor":
        import rdmatensor.torch  # noqa: F401 - registers the backend
    check_version(source, torch.__version__)
    folder = source / "test" / "distributed"
    sys.path[:0] = [str(folder), str(source / "test")]
    # Spawned ones would import the tests without what is set here, and take ten times as long.
    torch.multiprocessing.set_start_method("fork", force=True)
    context = torch.multiprocessing.get_context("fork")
    common.MultiProcessTestCase._spawn_processes = lambda self: self._start_processes(
        context.Process
    )
    common.DistributedTestBase.backend = lambda self, device: backend
    config_backends(folder, backend)
    for file in sorted(folder.glob("test_c10d_*.py")):
        if is_for_any(file.stem, file.read_text()):
            yield from made_of(importlib.import_module(file.stem), backend)


def config_backends(folder: Path, backend: str) -> None:
    """Let c10d_backend_common make its tests for one backend only."""
    if not (folder / "c10d_backend_common.py").is_file():
        return
    common: Any = importlib.import_module("c10d_backend_common")
    config = next(each for each in common.C10D_BACKENDS if each.name == "gloo")
    if backend != "gloo":
        known = {field.name for field in dataclasses.fields(config)}
        able = {name: True for name in ABLE if name in known}
        config = dataclasses.replace(config, name=backend, **able)
    common.C10D_BACKENDS, common.CUDA_BACKENDS = (config,), ()


def is_for_any(name: str, text: str) -> bool:
    """Return whether the tests of a module can be had for any backend."""
    by_hand = ("test_c10d_fault_tolerance", "test_c10d_object_collectives", "test_c10d_window")
    return name in by_hand or "from c10d_backend_common import" in text


def made_of(module: ModuleType, backend: str) -> Iterator[type[unittest.TestCase]]:
    """Yield the classes of a module for a backend."""
    if module.__name__ == "test_c10d_fault_tolerance":
        yield module._make_fault_tolerance_test_class(backend, "cpu")
    elif module.__name__ == "test_c10d_window":
        take_cpu_memory(module)
        yield module._make_window_test_class(backend, "cpu")
    else:
        own = [each for each in vars(module).values() if isinstance(each, type)]
        for kind in own:
            if issubclass(kind, unittest.TestCase) and kind.__module__ == module.__name__:
                yield kind


def take_cpu_memory(module: Any) -> None:
    """Let the tests of windows, which are for GPUs, take registered memory where they take a pool's."""
    import torch

    from rdmatensor.torch import empty

    inside = [False]

    @contextlib.contextmanager
    def use_mem_pool(pool: bool) -> Iterator[None]:
        inside[0] = pool
        yield
        inside[0] = False

    class Torch:
        cuda = SimpleNamespace(
            MemPool=lambda: False, use_mem_pool=use_mem_pool, synchronize=lambda: None
        )

        def __getattr__(self, name: str) -> Any:
            found = getattr(torch, name)
            if not inside[0] or name not in ("arange", "empty", "full", "ones", "zeros"):
                return found

            def registered(*given: Any, **named: Any) -> torch.Tensor:
                made = found(*given, **named)
                return empty(made.shape, made.dtype).copy_(made)

            return registered

    module.torch = Torch()
    module.AbstractWindowTest._make_pool = lambda self: True
    module.AbstractWindowTest.device = property(lambda self: torch.device("cpu"))

# SPDX-License-Identifier: Apache-2.0
"""Import hooks: what is done when a module was imported, and modules that no wheel has."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType

Hook = Callable[[ModuleType], object]
Spec = importlib.machinery.ModuleSpec


class AfterImport(importlib.abc.MetaPathFinder):
    """Calls a function with each of some modules, once it has been imported."""

    def __init__(self, hooks: dict[str, Hook]) -> None:
        self.hooks = hooks

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> Spec | None:
        hook = self.hooks.pop(name, None)
        if hook is None:
            return None
        found = (finder.find_spec(name, path, target) for finder in sys.meta_path)
        spec = next((spec for spec in found if spec is not None), None)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def execute_and_call(module: ModuleType) -> None:
            execute(module)
            hook(module)

        spec.loader.exec_module = execute_and_call  # type: ignore[method-assign]
        return spec


class Overlay(importlib.abc.MetaPathFinder):
    """Modules that no wheel has, from a folder."""

    def __init__(self, folder: str) -> None:
        self.folder = Path(folder)

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> Spec | None:
        place = self.folder.joinpath(*name.split("."))
        if (file := place.with_suffix(".py")).is_file():
            return importlib.util.spec_from_file_location(name, file)
        if place.is_dir():
            spec = Spec(name, None, is_package=True)
            spec.submodule_search_locations = [str(place)]
            return spec
        return None


class Xla(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """The package "xla" of TensorFlow's sources, which the wheel has below tensorflow.compiler."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> Spec | None:
        if name.partition(".")[0] != "xla":
            return None
        return importlib.util.spec_from_loader(name, self, is_package=True)

    def create_module(self, spec: Spec) -> ModuleType:
        return importlib.import_module(f"tensorflow.compiler.{spec.name}")

    def exec_module(self, module: ModuleType) -> None:
        pass


def install(hooks: dict[str, Hook], overlay: str) -> None:
    """Modules that were imported before are taken at once."""
    for name in [name for name in hooks if name in sys.modules]:
        hooks.pop(name)(sys.modules[name])
    sys.meta_path.insert(0, AfterImport(hooks))
    sys.meta_path += [Overlay(overlay), Xla()]

# SPDX-License-Identifier: Apache-2.0
"""The Python API as a whole: names, types and errors."""

from __future__ import annotations

import ast
import builtins
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import rdmatensor
from rdmatensor import config, errors

NAMES: list[str] = vars(rdmatensor)["__all__"]
# Types of Python and numpy.
OTHERS = {"Callable", "Generator", "Iterator", "Sequence", "np", "npt"}


def public() -> Iterator[tuple[str, Any]]:
    """Yield the public functions, and those of the public classes."""
    for name in NAMES:
        value = getattr(rdmatensor, name)
        if inspect.isfunction(value):
            yield name, value
        elif inspect.isclass(value):
            for attribute, member in vars(value).items():
                function = getattr(member, "fget", getattr(member, "__func__", member))
                if inspect.isfunction(function) and not attribute.startswith("_"):
                    yield f"{name}.{attribute}", function
    for name, value in vars(config).items():
        own = inspect.isfunction(value) and value.__module__ == config.__name__
        if own and not name.startswith("_"):
            yield f"config.{name}", value


def test_signatures_have_types_that_are_exported() -> None:
    known = {*vars(builtins), *NAMES, *OTHERS, *vars(config)} - {"Any"}
    for name, function in public():
        signature = inspect.signature(function)
        types = [
            each.annotation
            for each in signature.parameters.values()
            if each.name not in ("self", "cls")
        ]
        for annotation in [*types, signature.return_annotation]:
            assert annotation is not inspect.Signature.empty, f"{name} lacks a type"
            names = [each for each in ast.walk(ast.parse(annotation)) if isinstance(each, ast.Name)]
            assert {each.id for each in names} <= known, f"{annotation} of {name}"


def test_the_stub_has_the_same_names() -> None:
    stub = ast.parse(Path(rdmatensor.__file__).with_suffix(".pyi").read_text())
    names = [each for node in stub.body if isinstance(node, ast.ImportFrom) for each in node.names]
    assert sorted(each.name for each in names) == NAMES
    assert all(each.name == each.asname for each in names), "type checkers take others as private"


def test_errors_form_one_hierarchy() -> None:
    found = [each for each in vars(errors).values() if inspect.isclass(each)]
    assert len(found) > 10
    for each in found:
        assert issubclass(each, rdmatensor.RdmaError)
        assert getattr(rdmatensor, each.__name__) is each
        others = {base for base in each.__mro__ if base.__module__ == "builtins"}
        assert others >= {Exception}


def test_one_word_means_one_thing() -> None:
    """The arguments of a group's operations, in Python and in rdmatensor.train."""
    operations = (
        "all_reduce",
        "reduce_scatter",
        "all_gather",
        "broadcast",
        "all_to_all",
        "barrier",
    )
    start = inspect.signature(rdmatensor.Group.start).parameters
    for name in operations:
        given = inspect.signature(getattr(rdmatensor.Group, name)).parameters
        assert {*given} <= {*start}
        for each, parameter in given.items():
            if parameter.default is not inspect.Parameter.empty and each != "root":
                assert parameter.default == start[each].default, f"{each} of {name}"

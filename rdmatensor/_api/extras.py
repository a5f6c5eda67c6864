# SPDX-License-Identifier: Apache-2.0
"""What parts of rdmatensor need beyond its own requirements, how to install it, and what was built."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_TENSORFLOW = "pip install 'tensorflow-cpu>=2.20,<2.23', then install rdmatensor beside it again"
# By the name that is imported. pip adds what an extra lists to an rdmatensor that is installed already.
_REMEDIES = {
    "graph_analyzer": "another package may have this name; run rdmatensor doctor",
    "jax": "pip install 'rdmatensor[jax]'",
    "keras": _TENSORFLOW,
    "matplotlib": "pip install 'rdmatensor[simulate]'",
    "prometheus_client": "pip install 'rdmatensor[metrics]'",
    "scipy": "pip install 'rdmatensor[topology]'",
    "sklearn": "pip install 'rdmatensor[simulate]'",
    "tensorflow": _TENSORFLOW,
    **{name: f"pip install {name}" for name in ("cffi", "click", "jinja2", "numpy", "rich")},
}


def build_info() -> dict[str, str]:
    """Return the facts that rdmatensor's own build recorded; {} if there are none."""
    try:
        return dict(json.loads(Path(__file__).parents[1].joinpath("_build_info.json").read_text()))
    except (OSError, ValueError):
        return {}


def remedy(error: ImportError) -> str:
    """Return how to get what could not be imported, or "" if this is not known."""
    return _REMEDIES.get(_package(error), "")


def _package(error: ImportError) -> str:
    return (error.name or "").partition(".")[0]


@contextmanager
def needed_by(what: str) -> Iterator[None]:
    """Let a missing package raise a ModuleNotFoundError that says what needs it and how to install it."""
    try:
        yield
    except ModuleNotFoundError as error:
        if not remedy(error):
            raise
        text = f"{what} needs {_package(error)}: {remedy(error)}"
        raise ModuleNotFoundError(text, name=error.name) from None

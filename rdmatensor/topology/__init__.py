# SPDX-License-Identifier: Apache-2.0
"""The links between members of a group, and the spanning trees that fill them.

`load` reads a topology from a file, `probe` measures one, `plan` finds the trees for Group.use_trees, `use`
gives them to a group, and `Watch` packs them anew when a link slows down. Planning needs SciPy:
pip install 'rdmatensor[topology]'.
"""

from __future__ import annotations

from importlib import import_module

from .._api.extras import needed_by
from .model import Link, Member, Topology, load, parse, recorded_names

__all__ = [
    "Link",
    "Member",
    "Topology",
    "Watch",
    "load",
    "parse",
    "plan",
    "probe",
    "recorded_names",
    "use",
    "use_in_tensorflow",
]


_HOMES = {
    "Watch": "watch",
    "plan": "pack",
    "probe": "probing",
    "use": "agree",
    "use_in_tensorflow": "tensorflow",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with needed_by(f"rdmatensor.topology.{name}"):
        return getattr(import_module(f".{_HOMES[name]}", __name__), name)

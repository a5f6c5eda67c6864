# SPDX-License-Identifier: Apache-2.0
"""The links between members of a group, and the spanning trees that fill them.

`load` reads a topology from a file, `probe` measures one, `plan` finds the trees for Group.use_trees, `use`
gives them to a group, and `Watch` packs them anew when a link slows down. Planning needs SciPy:
pip install 'rdmatensor[topology]'.
"""

from __future__ import annotations

from .._api.lazy import attach
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

__getattr__ = attach(
    __name__,
    {
        "agree": "use",
        "pack": "plan",
        "probing": "probe",
        "tensorflow": "use_in_tensorflow",
        "watch": "Watch",
    },
)

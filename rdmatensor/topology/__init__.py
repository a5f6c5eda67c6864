# SPDX-License-Identifier: Apache-2.0
"""The links between members of a group, and the spanning trees that fill them.

`load` reads a topology from a file, `probe` measures one, `plan` finds the trees for Group.use_trees, `use`
gives them to a group, and `Watch` packs them anew when a link slows down. Planning needs SciPy:
pip install 'rdmatensor[topology]'.
"""

from __future__ import annotations

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


def __getattr__(name: str) -> object:
    if name == "plan":
        from .pack import plan

        return plan
    if name == "use":
        from .agree import use

        return use
    if name == "probe":
        from .probing import probe

        return probe
    if name == "Watch":
        from .watch import Watch

        return Watch
    if name == "use_in_tensorflow":
        from .tensorflow import use_in_tensorflow

        return use_in_tensorflow
    raise AttributeError(name)

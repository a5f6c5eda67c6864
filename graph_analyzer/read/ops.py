# SPDX-License-Identifier: Apache-2.0
"""What the planner has to know about operations. ops.def, which the plugin shares, has most of it."""

from __future__ import annotations

import re
from pathlib import Path

_FACTS = re.findall(
    r"^OP\((\w+), (\w+)\)$", Path(__file__).with_name("ops.def").read_text(), re.MULTILINE
)


def _named(fact: str) -> frozenset[str]:
    return frozenset(op for which, op in _FACTS if which == fact)


_WAITS, _STATE, _FREE = _named("WAITS"), _named("STATE"), _named("FREE")
_BRANCH = _named("BRANCH")
_STATE_PREFIXES = tuple(_named("STATE_PREFIX"))

ENTER = frozenset(["Enter", "RefEnter"])
EXIT = frozenset(["Exit", "RefExit"])
MERGE = frozenset(["Merge", "RefMerge"])
SWITCH = frozenset(["Switch", "RefSwitch"])
NEXT_ITERATION = frozenset(["NextIteration", "RefNextIteration"])

# TensorFlow replaces these nodes by their bodies, which are other graphs, before it partitions.
CALLS = frozenset(["PartitionedCall", "StatefulPartitionedCall"])
CONTROL_FLOW = frozenset(["While", "StatelessWhile", "If", "StatelessIf", "Case", "StatelessCase"])


def blocks(op: str, stateful: bool) -> bool:
    """Return whether a node may wait for, or depend on, something that is not its input."""
    if op in _WAITS:
        return True
    return stateful and op not in _STATE and not op.startswith(_STATE_PREFIXES)


def branches(op: str) -> bool:
    """Return whether a node may leave what follows it without a value."""
    return op in _BRANCH


def free(op: str) -> bool:
    """Return whether a node takes no time worth counting."""
    return op in _FREE

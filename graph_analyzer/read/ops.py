# SPDX-License-Identifier: Apache-2.0
"""What the planner has to know about operations.

The plugin has the same lists (csrc/tensorflow/graph/graph_order.cc): change both, or plans made before a
cluster exists differ from those in force.
"""

from __future__ import annotations

# fmt: off
# Read and change state, but wait for nothing except their inputs.
_STATE_WITHOUT_WAITING = frozenset(
    ["VarHandleOp", "ReadVariableOp", "VariableV2", "Variable", "VarIsInitializedOp",
     "ResourceGather", "_Arg", "_Retval", "PartitionedCall",
     "StatefulPartitionedCall"]
)
_STATE_WITHOUT_WAITING_PREFIXES = (
    "Assign",
    "ResourceApply",
    "ResourceSparseApply",
    "Apply",
    "SparseApply",
    "ResourceScatter",
    "Scatter",
    "Random",
    "StatelessRandom",
    "StatefulStandardNormal",
    "StatefulUniform",
    "TruncatedNormal",
    "ParameterizedTruncatedNormal",
    "Multinomial",
)
_WAITS = frozenset(
    ["Placeholder", "PlaceholderWithDefault", "_Recv", "_HostRecv", "_Send", "_HostSend",
     "Recv", "Send", "PyFunc", "EagerPyFunc", "PyFuncStateless"]
)
_FREE = frozenset(
    ["Const", "Identity", "IdentityN", "VarHandleOp", "ReadVariableOp", "VariableV2",
     "Variable", "NoOp", "Reshape", "Squeeze", "ExpandDims", "Shape", "ShapeN", "Rank",
     "Size", "StopGradient", "PreventGradient", "_Arg", "_Retval", "Placeholder",
     "PlaceholderWithDefault", "VarIsInitializedOp", "Snapshot"]
)
# fmt: on

ENTER = frozenset(["Enter", "RefEnter"])
EXIT = frozenset(["Exit", "RefExit"])
MERGE = frozenset(["Merge", "RefMerge"])
NEXT_ITERATION = frozenset(["NextIteration", "RefNextIteration"])

# Their bodies are other graphs, which TensorFlow puts in their place before it partitions.
CALLS = frozenset(["PartitionedCall", "StatefulPartitionedCall"])
CONTROL_FLOW = frozenset(["While", "StatelessWhile", "If", "StatelessIf", "Case", "StatelessCase"])


def blocks(op: str, stateful: bool) -> bool:
    """Whether a node may wait for, or depend on, something that is not its input."""
    if op in _WAITS:
        return True
    if not stateful or op in _STATE_WITHOUT_WAITING:
        return False
    return not op.startswith(_STATE_WITHOUT_WAITING_PREFIXES)


def free(op: str) -> bool:
    """Whether a node takes no time worth counting."""
    return op in _FREE

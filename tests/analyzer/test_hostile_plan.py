# SPDX-License-Identifier: Apache-2.0
"""Plans from files and servers are refused, or can be used: hypothesis damages one."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graph_analyzer import AnalysisError, TransferPlan, diff
from graph_analyzer.report.html import page

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([-1, 1 << 62, 1 << 63, 10**400])
    | st.floats()
    | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=4,
)


def _places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where something in a document can be replaced."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    found = []
    for key, inner in items:
        found.append((*path, key))
        if isinstance(inner, (dict, list)):
            found += _places(inner, (*path, key))
    return found


@settings(max_examples=150)
@given(data=st.data())
def test_a_damaged_plan_is_refused_or_can_be_used(plan: TransferPlan, data: st.DataObject) -> None:
    document = json.loads(plan.to_json())
    for _ in range(data.draw(st.integers(1, 3))):
        *path, last = data.draw(st.sampled_from(_places(document)))
        parent = document
        for key in path:
            parent = parent[key]
        if data.draw(st.booleans()):
            parent[last] = data.draw(VALUES)
        else:
            del parent[last]
    try:
        read = TransferPlan.from_json(json.dumps(document))
    except AnalysisError:
        return
    assert TransferPlan.from_json(read.to_json()) == read
    diff(plan, read)
    assert page(read)


def test_a_place_in_no_memory_is_refused(plan: TransferPlan) -> None:
    """Each link in turn is missing, or goes elsewhere."""
    document = json.loads(plan.to_json())
    for number, link in enumerate(document["links"]):
        less = copy.deepcopy(document)
        del less["links"][number]
        with pytest.raises(AnalysisError, match="has a place, but no link"):
            TransferPlan.from_json(json.dumps(less))
        less["links"].append({**link, "destination": link["source"]})
        with pytest.raises(AnalysisError, match="has a place, but no link"):
            TransferPlan.from_json(json.dumps(less))


@settings(max_examples=50)
@given(text=st.binary(max_size=40) | st.text(max_size=40))
def test_anything_else_is_refused(text: str | bytes) -> None:
    with pytest.raises(AnalysisError):
        TransferPlan.from_json(text)


def test_what_python_cannot_hold_is_refused(plan: TransferPlan) -> None:
    with pytest.raises(AnalysisError):
        TransferPlan.from_json("[" * 100_000)
    document: dict[str, Any] = copy.deepcopy(json.loads(plan.to_json()))
    document["control_edges"] = float("inf")
    with pytest.raises(AnalysisError, match="control_edges"):
        TransferPlan.from_json(json.dumps(document))

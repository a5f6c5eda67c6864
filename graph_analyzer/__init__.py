# SPDX-License-Identifier: Apache-2.0
"""Tell, before a cluster exists, what a dataflow graph will send between tasks and where it will lie.

    from graph_analyzer import PlacedOn, analyze, live, to_html

    plan = analyze(model, strategy=PlacedOn(ps=2, workers=2), batch_size=32)
    plan.static_share
    to_html(plan, "plan.html")
    live("grpc://host:2222")     # the plan in force of a running server

TensorFlow is imported by the first call that needs it.
"""

from __future__ import annotations

from rdmatensor.plan import Options

from .live import live
from .model.errors import AnalysisError, LiveError
from .model.plan import Difference, Edge, Link, TransferPlan, closest, diff, join
from .place.analyze import analyze
from .read.placement import PlacedOn
from .report.advice import Advice, advise
from .report.cost import Network, predict
from .report.html import to_html

__all__ = [
    "Advice",
    "AnalysisError",
    "Difference",
    "Edge",
    "Link",
    "LiveError",
    "Network",
    "Options",
    "PlacedOn",
    "TransferPlan",
    "advise",
    "analyze",
    "closest",
    "diff",
    "join",
    "live",
    "predict",
    "to_html",
]

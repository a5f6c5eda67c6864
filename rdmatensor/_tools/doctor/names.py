# SPDX-License-Identifier: Apache-2.0
"""Whether `import graph_analyzer` finds the package of rdmatensor, or that of another distribution."""

from __future__ import annotations

import importlib.util
from importlib import metadata
from pathlib import Path

from .finding import Finding

AREA = "packages"
_OURS = "rdmatensor"
_NAME = "graph_analyzer"


def finding() -> Finding:
    """Report which distribution installed the package, and which one Python finds."""
    others = sorted({*metadata.packages_distributions().get(_NAME, [])} - {_OURS})
    again = f"pip install --force-reinstall --no-deps {_OURS}-*.whl"
    if others:
        text = f"graph_analyzer is also a package of {', '.join(others)}: one overwrites the other"
        return Finding(AREA, "fail", text, f"pip uninstall {' '.join(others)} && {again}")
    ours = Path(__file__).parents[3] / _NAME / "__init__.py"
    spec = importlib.util.find_spec(_NAME)
    if spec is None:
        return Finding(AREA, "fail", "graph_analyzer is not installed beside rdmatensor", again)
    if spec.origin is None or Path(spec.origin).resolve() != ours.resolve():
        where = spec.origin or ", ".join(spec.submodule_search_locations or ())
        text = f"import graph_analyzer finds {where} instead of {ours.parent}"
        return Finding(AREA, "fail", text, "rename that file or folder, or start Python elsewhere")
    return Finding(AREA, "ok", f"rdmatensor and {_NAME}, in {ours.parents[1]}")

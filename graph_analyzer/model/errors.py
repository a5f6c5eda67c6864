# SPDX-License-Identifier: Apache-2.0
"""The errors of the analyzer."""

from __future__ import annotations


class AnalysisError(ValueError):
    """The input cannot be analysed. The message names the cause and the remedy."""


class LiveError(RuntimeError):
    """A running server returned no plan. The message names the cause and the remedy."""

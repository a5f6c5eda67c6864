# SPDX-License-Identifier: Apache-2.0
"""What can be wrong with what is to be analysed."""

from __future__ import annotations


class AnalysisError(ValueError):
    """The input cannot be analysed. The text names the cause and the remedy."""


class LiveError(RuntimeError):
    """A running server did not tell its plan. The text names the cause and the remedy."""

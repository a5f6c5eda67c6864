# SPDX-License-Identifier: Apache-2.0
"""Benchmarks are programs in a folder of their own."""

from __future__ import annotations

# SPDX-License-Identifier: Apache-2.0
"""Measuring: records of runs, their report, and the benchmark that needs nothing but this package."""

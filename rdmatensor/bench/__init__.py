# SPDX-License-Identifier: Apache-2.0
"""The benchmark of the Python API, and the records and reports of all benchmarks."""

# SPDX-License-Identifier: Apache-2.0
"""The parts of the Python API. Users import them from `rdmatensor`."""

# SPDX-License-Identifier: Apache-2.0
"""The plan of a graph's transfers: its edges, links, units and errors."""

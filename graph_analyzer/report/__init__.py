# SPDX-License-Identifier: Apache-2.0
"""Reports about a plan: text, a page, the cost of its transfers, and advice."""

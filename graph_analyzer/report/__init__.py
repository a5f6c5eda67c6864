# SPDX-License-Identifier: Apache-2.0
"""Reports about a plan: as text, as a page, its cost, advice."""

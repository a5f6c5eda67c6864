# SPDX-License-Identifier: Apache-2.0
"""The processes that train together: who they are, and how one joins again."""

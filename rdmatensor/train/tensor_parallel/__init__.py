# SPDX-License-Identifier: Apache-2.0
"""Cut large dense layers of a model into strips, one for each process of a group (SplitBrain)."""

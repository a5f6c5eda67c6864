# SPDX-License-Identifier: Apache-2.0
"""Tables of embeddings: where their rows live, and how they are read and updated."""

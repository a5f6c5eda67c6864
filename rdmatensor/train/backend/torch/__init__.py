# SPDX-License-Identifier: Apache-2.0
"""What training needs of PyTorch, for Keras on it."""

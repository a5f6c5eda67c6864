# SPDX-License-Identifier: Apache-2.0
"""TensorFlow's side: operations in its graphs, its optimizers, its data."""

# SPDX-License-Identifier: Apache-2.0
"""Placing a graph on tasks as TensorFlow would, and planning its transfers."""

# SPDX-License-Identifier: Apache-2.0
"""Optimizers whose state is cut over the processes."""

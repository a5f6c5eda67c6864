# SPDX-License-Identifier: Apache-2.0
"""Train with Keras: callbacks of fit(), metrics, backups, and what distribute() does to an optimizer."""

# SPDX-License-Identifier: Apache-2.0
"""The commands of `rdmatensor`, each in a module. cli.py lists them."""

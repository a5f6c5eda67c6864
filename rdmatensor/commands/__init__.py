# SPDX-License-Identifier: Apache-2.0
"""One module for each command of `rdmatensor`. cli.py lists them."""

# SPDX-License-Identifier: Apache-2.0
"""The ways in which processes that train can stay together. rules.py has their formulas."""

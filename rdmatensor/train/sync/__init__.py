# SPDX-License-Identifier: Apache-2.0
"""Ways to keep the models of several processes together: one file for each, rules.py for their formulas."""

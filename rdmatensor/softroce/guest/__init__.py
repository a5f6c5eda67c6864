# SPDX-License-Identifier: Apache-2.0
"""What runs inside a guest: `init` (busybox sh), then `agent.py` as its process 1."""

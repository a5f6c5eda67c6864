# SPDX-License-Identifier: Apache-2.0
"""Name the place of this process among those that train together, for programs that need no TensorFlow."""

from __future__ import annotations

from ..._tools.roles import Role, device_name, device_of, join, role_of

__all__ = ["Role", "device_name", "device_of", "join", "role_of"]

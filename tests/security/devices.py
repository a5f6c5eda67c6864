# SPDX-License-Identifier: Apache-2.0
"""What the tests of this folder share."""

from __future__ import annotations

from collections.abc import Callable

import rdmatensor

SECRET = b"the secret of this cluster"
OTHER = b"the secret of that cluster"

# Opens a device that has this secret, if any, under these settings.
Open = Callable[..., rdmatensor.Device]


def works(ours: rdmatensor.Device, theirs: rdmatensor.Device) -> bool:
    """Whether `ours` can connect to `theirs`, and write into its memory."""
    with theirs.allocate(64, name="written") as region:
        remote = ours.connect(theirs.address)
        remote.region("written").write(b"12345678").wait()
        remote.close()
        return bytes(region.array[:8]) == b"12345678"

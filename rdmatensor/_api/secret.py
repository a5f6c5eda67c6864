# SPDX-License-Identifier: Apache-2.0
"""Make the secret by which the devices of one program recognize each other."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator

from .. import config


def new_secret() -> str:
    """Return a secret for the devices of one program; "" if the settings say how they trust each other."""
    if config.get("SECRET_FILE") or config.get("INSECURE") != "0":
        return ""
    return secrets.token_hex(32)


@contextlib.contextmanager
def secret_file(secret: str) -> Iterator[str]:
    """Keep a secret in a file that only this user can read, within the block. Yields its path.

    The file is memory of this process, so that it ends with it, also by SIGKILL. Children can read it.
    """
    with os.fdopen(os.memfd_create("rdmatensor-secret"), "w") as file:
        os.fchmod(file.fileno(), 0o600)
        file.write(secret)
        file.flush()
        yield f"/proc/{os.getpid()}/fd/{file.fileno()}"

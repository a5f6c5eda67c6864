# SPDX-License-Identifier: Apache-2.0
"""Devices with secrets and limits of their own, in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

import rdmatensor
from security.devices import Open


@pytest.fixture
def secret_file(tmp_path: Path) -> Callable[[bytes], Path]:
    def write(secret: bytes) -> Path:
        path = tmp_path / f"secret-{secret.hex()}"
        path.touch(0o600)
        path.write_bytes(secret + b"\n")
        return path

    return write


@pytest.fixture
def open_device(
    secret_file: Callable[[bytes], Path], setting: Callable[[str, str | int], None]
) -> Iterator[Open]:
    with ExitStack() as opened:

        def make(secret: bytes = b"", **settings: str | int) -> rdmatensor.Device:
            for name, value in {"TRANSPORTS": "shm", **settings}.items():
                setting(name, value)
            setting("SECRET_FILE", str(secret_file(secret)) if secret else "")
            return opened.enter_context(rdmatensor.Device())

        yield make

# SPDX-License-Identifier: Apache-2.0
"""The file with the secret, and who connects with which."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import rdmatensor
from security.devices import OTHER, SECRET, Open, works

Setting = Callable[[str, str | int], None]


@pytest.fixture
def refusal(setting: Setting, tmp_path: Path) -> Callable[[Path], str]:
    """What opening a device says to a file."""

    def open_with(path: Path) -> str:
        setting("SECRET_FILE", str(path))
        with pytest.raises(rdmatensor.RdmaError) as caught:
            rdmatensor.Device()
        assert caught.value.status == "INVALID"
        assert "RDMATENSOR_SECRET_FILE" in str(caught.value)
        return str(caught.value)

    return open_with


def test_missing_file(refusal: Callable[[Path], str], tmp_path: Path) -> None:
    assert "No such file" in refusal(tmp_path / "missing")


def test_what_is_no_file(refusal: Callable[[Path], str], tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe", 0o600)
    (tmp_path / "folder").mkdir(0o700)
    for name in ("pipe", "folder"):
        assert "not a regular file" in refusal(tmp_path / name)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o602, 0o644])
def test_file_open_to_others(
    refusal: Callable[[Path], str], secret_file: Callable[[bytes], Path], mode: int
) -> None:
    path = secret_file(SECRET)
    path.chmod(mode)
    assert f"chmod 600 {path}" in refusal(path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_file_of_another_user(
    refusal: Callable[[Path], str], secret_file: Callable[[bytes], Path]
) -> None:
    path = secret_file(SECRET)
    os.chown(path, 12345, -1)
    assert "belongs to user 12345" in refusal(path)


@pytest.mark.parametrize("size", [0, 1, 15, 4097, 100_000])
def test_length(
    refusal: Callable[[Path], str], secret_file: Callable[[bytes], Path], size: int
) -> None:
    path = secret_file(b"")
    path.write_bytes(b"x" * size + (b"\n" if size < 16 else b""))
    assert ("at least 16" if size < 16 else "longer than 4096") in refusal(path)


@pytest.mark.parametrize("end", [b"", b"\n", b"\r\n"])
def test_line_ends_are_no_part_of_it(
    open_device: Open, secret_file: Callable[[bytes], Path], setting: Setting, end: bytes
) -> None:
    first = open_device(SECRET)
    path = secret_file(OTHER)
    path.write_bytes(SECRET + end)
    setting("SECRET_FILE", str(path))
    with rdmatensor.Device() as second:
        assert works(first, second)


def test_the_same_secret(open_device: Open) -> None:
    first, second = open_device(SECRET), open_device(SECRET)
    assert works(first, second)
    assert works(second, first)


def test_another_secret(open_device: Open, capfd: pytest.CaptureFixture[str]) -> None:
    first, second, stranger = open_device(SECRET), open_device(SECRET), open_device(OTHER)
    for _ in range(3):
        with pytest.raises(rdmatensor.ConnectionRefused) as caught:
            stranger.connect(first.address)
        assert caught.value.status == "REFUSED"
        assert f"{stranger.name} does not have the secret of {first.name}" in str(caught.value)
        assert "sha256sum" in str(caught.value)
        assert "the secret of" not in str(caught.value).replace(f"the secret of {first.name}", "")
    with pytest.raises(rdmatensor.ConnectionRefused):
        first.connect(stranger.address)
    assert works(first, second)
    lines = capfd.readouterr().err.splitlines()
    assert sum("was refused" in line and first.name in line for line in lines) == 2, (
        "each of the two devices that refused says so once"
    )


@pytest.mark.parametrize("side", ["connecting", "listening"])
def test_secret_on_one_side(open_device: Open, side: str) -> None:
    having, lacking = open_device(SECRET), open_device()
    ours, theirs = (having, lacking) if side == "connecting" else (lacking, having)
    with pytest.raises(rdmatensor.ConnectionRefused) as caught:
        ours.connect(theirs.address)
    assert f"{having.name} has a secret, and {lacking.name} has none" in str(caught.value)
    assert "RDMATENSOR_SECRET_FILE" in str(caught.value)


def test_insecure_is_loud_and_does_not_weaken_a_secret(
    open_device: Open, capfd: pytest.CaptureFixture[str]
) -> None:
    lacking = open_device(INSECURE=1)
    assert f"WARN: device {lacking.name}: RDMATENSOR_INSECURE=1" in capfd.readouterr().err
    having = open_device(SECRET, INSECURE=1)
    assert "INSECURE" not in capfd.readouterr().err
    with pytest.raises(rdmatensor.ConnectionRefused, match="has a secret"):
        lacking.connect(having.address)


TENSORFLOW = """
import ctypes, importlib.util, pathlib, sys
folder = pathlib.Path(importlib.util.find_spec("tensorflow").origin).parent
tensorflow = ctypes.CDLL(folder / "libtensorflow_framework.so.2", ctypes.RTLD_GLOBAL)
assert tensorflow.HMAC and tensorflow.EVP_sha256
import rdmatensor
with rdmatensor.Device() as first, rdmatensor.Device() as second:
    first.connect(second.address)
    print("connected")
"""


def test_beside_the_cryptography_of_tensorflow(secret_file: Callable[[bytes], Path]) -> None:
    """It exports functions of the same names, which must not be taken for OpenSSL's, nor by OpenSSL."""
    if importlib.util.find_spec("tensorflow") is None:
        pytest.skip("no TensorFlow here")
    environment = {**os.environ, "RDMATENSOR_SECRET_FILE": str(secret_file(SECRET))}
    done = subprocess.run(
        [sys.executable, "-c", TENSORFLOW],
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.stdout == "connected\n", done.stderr[-3000:]

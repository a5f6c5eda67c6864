# SPDX-License-Identifier: Apache-2.0
"""CRC32C as Python sees it, by data that hypothesis makes up; test_crc32c.c has the vectors."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rdmatensor

POLYNOMIAL = 0x82F63B78


def _bit_by_bit(data: bytes, value: int = 0) -> int:
    value ^= 0xFFFFFFFF
    for byte in data:
        value ^= byte
        for _ in range(8):
            value = value >> 1 ^ (POLYNOMIAL if value & 1 else 0)
    return value ^ 0xFFFFFFFF


@settings(max_examples=100)
@given(st.binary(max_size=2000), st.integers(0, 15), st.integers(0, (1 << 32) - 1))
def test_any_bytes(data: bytes, begin: int, value: int) -> None:
    part = memoryview(data)[begin:]
    assert rdmatensor.crc32c(part, value) == _bit_by_bit(bytes(part), value)


@settings(max_examples=50)
@given(st.binary(min_size=1, max_size=3000), st.data())
def test_pieces_and_bits(data: bytes, draw: st.DataObject) -> None:
    whole = rdmatensor.crc32c(data)
    at = draw.draw(st.integers(0, len(data)))
    assert rdmatensor.crc32c(data[at:], rdmatensor.crc32c(data[:at])) == whole
    wrong = bytearray(data)
    wrong[draw.draw(st.integers(0, len(data) - 1))] ^= 1 << draw.draw(st.integers(0, 7))
    assert rdmatensor.crc32c(wrong) != whole


def test_buffers() -> None:
    assert rdmatensor.crc32c(b"") == 0
    assert rdmatensor.crc32c(b"123456789") == 0xE3069283
    array = np.arange(10_000, dtype="float32").reshape(100, 100)
    assert rdmatensor.crc32c(array) == rdmatensor.crc32c(array.tobytes())


def test_what_is_refused() -> None:
    with pytest.raises(rdmatensor.UsageError, match="contiguous"):
        rdmatensor.crc32c(np.arange(100)[::2])
    with pytest.raises(rdmatensor.UsageError, match="encode"):
        rdmatensor.crc32c("text")  # type: ignore[arg-type]
    for value in (-1, 1 << 32):
        with pytest.raises(rdmatensor.UsageError, match="from 0 to 4294967295"):
            rdmatensor.crc32c(b"", value)

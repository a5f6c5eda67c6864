# SPDX-License-Identifier: Apache-2.0
"""Sizes, times and rates are read and written with the right unit."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rdmatensor import units


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (999.6, "1 KB"),
        (1000, "1 KB"),
        (1024, "1.02 KB"),
        (999_400, "999 KB"),
        (999_600, "1 MB"),
        (17_425_448, "17.4 MB"),
        (5.3e12, "5.3 TB"),
        (5.3e15, "5300 TB"),
    ],
)
def test_size(nbytes: float, text: str) -> None:
    assert units.size(nbytes) == text


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [
        (8, "8 B"),
        (1000, "1000 B"),
        (4 << 10, "4 KiB"),
        (1023 << 10, "1023 KiB"),
        (3 << 29, "1.5 GiB"),
        (1 << 40, "1 TiB"),
    ],
)
def test_binary_size(nbytes: float, text: str) -> None:
    assert units.binary_size(nbytes) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (5e-8, "0.05 us"),
        (2.5e-6, "2.5 us"),
        (999.6e-6, "1 ms"),
        (0.0123, "12.3 ms"),
        (0.2071, "207 ms"),
        (0.9996, "1 s"),
        (3.214, "3.21 s"),
        (1234.5, "1234 s"),
    ],
)
def test_duration(seconds: float, text: str) -> None:
    assert units.duration(seconds) == text


@given(st.floats(0, 1e18))
def test_no_amount_has_an_exponent_or_a_larger_unit(nbytes: float) -> None:
    found = re.fullmatch(r"([\d.]+) (TB|GB|MB|KB|B)", units.size(nbytes))
    assert found
    assert float(found[1]) < 1000 or found[2] == "TB"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("100Gbit", 12.5e9),
        ("12.5 GB/s", 12.5e9),
        ("10gbit/s", 1.25e9),
        ("1Gbps", 1.25e8),
        ("8bit", 1.0),
    ],
)
def test_bandwidth(text: str, value: float) -> None:
    assert units.bandwidth(text) == pytest.approx(value)


@pytest.mark.parametrize("text", ["", "fast", "10", "0Gbit", "-1Gbit", "1e9bit"])
def test_other_bandwidths_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="such as 100Gbit"):
        units.bandwidth(text)


@pytest.mark.parametrize(
    ("text", "value"), [("2us", 2e-6), ("0.1 ms", 1e-4), ("1s", 1.0), ("5ns", 5e-9)]
)
def test_latency(text: str, value: float) -> None:
    assert units.latency(text) == pytest.approx(value)


@pytest.mark.parametrize("text", ["", "2", "us", "-1us", "2 min"])
def test_other_latencies_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="such as 2us"):
        units.latency(text)


@pytest.mark.parametrize(
    ("task", "text"),
    [
        ("/job:ps/replica:0/task:1", "ps:1"),
        ("/job:ps/task:1", "ps:1"),
        ("/job:ps/replica:2/task:1", "ps:2:1"),
        ("localhost:2222", "localhost:2222"),
    ],
)
def test_short_task(task: str, text: str) -> None:
    assert units.short_task(task) == text


def test_count() -> None:
    assert [units.count(number, "tensor") for number in (1, 2, 1000)] == [
        "1 tensor",
        "2 tensors",
        "1,000 tensors",
    ]

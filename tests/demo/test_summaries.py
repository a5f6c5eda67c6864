# SPDX-License-Identifier: Apache-2.0
"""How the demo and the benchmarks sum up what was measured."""

from __future__ import annotations

from typing import Any

import pytest

from rdmatensor.demo.paths import PATHS, Paths
from rdmatensor.demo.timing import Distribution, duration, size


def _stats(**counts: int) -> dict[str, Any]:
    paths = {
        path: {"sent_tensors": counts.get(path, 0), "sent_bytes": 100 * counts.get(path, 0)}
        for path in PATHS
    }
    return {"paths": paths, "rpc_reasons": {}, "peers": []}


def test_distribution_interpolates() -> None:
    found = Distribution.of([4.0, 1.0, 2.0, 3.0, 5.0])
    assert (found.count, found.p10, found.median, found.p90) == pytest.approx((5, 1.4, 3.0, 4.6))


def test_distribution_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="no times"):
        Distribution.of([])


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(2.5e-6, "2.5 us"), (0.0123, "12.3 ms"), (0.2071, "207 ms"), (3.21, "3.21 s")],
)
def test_duration(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"), [(4, "4 B"), (1024, "1.02 KB"), (17_425_448, "17.4 MB"), (5.3e12, "5300 GB")]
)
def test_size(count: float, text: str) -> None:
    assert size(count) == text


def test_paths_survive_json_and_add_up() -> None:
    part = Paths.from_stats(_stats(inline=1, dynamic=2))
    total = Paths.total([part, Paths.from_json(part.as_json())])
    assert total.tensors["dynamic"] == 4
    assert total.pushed_bytes() == 600
    assert total.avoidable() == []


def test_strings_may_go_by_rpc() -> None:
    stats = _stats(rpc=3) | {"rpc_reasons": {"string": 3}}
    assert Paths.from_stats(stats).avoidable() == []


@pytest.mark.parametrize("reasons", [{"arena full": 3}, {"string": 2}])
def test_other_tensors_must_be_pushed(reasons: dict[str, int]) -> None:
    stats = _stats(rpc=3) | {"rpc_reasons": reasons}
    assert len(Paths.from_stats(stats).avoidable()) == 1


def test_a_peer_without_a_transport_is_named() -> None:
    peer = {"task": "t", "direction": "receive", "state": "rpc", "why": "no plugin there"}
    assert Paths.from_stats(_stats() | {"peers": [peer]}).avoidable() == [
        "gRPC only: receive t: no plugin there"
    ]

# SPDX-License-Identifier: Apache-2.0
"""The paths that the demo and the benchmarks count."""

from __future__ import annotations

from typing import Any

import pytest

from paths import PATHS, Paths


def _stats(**counts: int) -> dict[str, Any]:
    paths = {
        path: {"sent_tensors": counts.get(path, 0), "sent_bytes": 100 * counts.get(path, 0)}
        for path in PATHS
    }
    return {
        "paths": paths,
        "rpc_reasons": {},
        "peers": [],
        "transports": {"tcp": {"sent_bytes": 7}},
    }


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

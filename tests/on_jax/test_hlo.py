# SPDX-License-Identifier: Apache-2.0
"""Which devices a program concerns, of the text that XLA writes."""

from __future__ import annotations

import pytest

from rdmatensor import Unsupported
from rdmatensor._api.hlo import partitions

PROGRAM = """HloModule jit_f, is_scheduled=true, num_partitions=8

%add (a: f32[], b: f32[]) -> f32[] {
  ROOT %sum = f32[] add(%a, %b)
}

%body (p: (s32[], f32[4])) -> (s32[], f32[4]) {
  %x = f32[4]{0} all-reduce(%p.1), channel_id=1, replica_groups=[4,2]<=[8], to_apply=%add
}

%branch (p: f32[4]) -> f32[4] {
  %x = f32[4]{0} collective-permute(%p), channel_id=1, source_target_pairs={{0,1},{1,0}}
}

ENTRY %main.3_spmd (p: f32[4]) -> f32[4] {
  %all-reduce.1 = f32[4]{0} all-gather(%p), channel_id=1, replica_groups=GROUPS, use_global_device_ids=true
  %w = (s32[], f32[4]{0}) while(%t), condition=%cond, body=%body, metadata={op_name=" all-reduce("}
  %c = f32[4]{0} conditional(%q, %p, %p), branch_computations={%other, %branch}
  ROOT %y = f32[4]{0} copy(%all-reduce.1)
}
"""


@pytest.mark.parametrize(
    ("text", "groups"),
    [
        ("{{0,2},{1,3},{4,6},{5,7}}", [(0, 2), (1, 3), (4, 6), (5, 7)]),
        ("{}", [tuple(range(8))]),
        ("[2,4]<=[8]", [(0, 1, 2, 3), (4, 5, 6, 7)]),
        ("[2,4]<=[4,2]T(1,0)", [(0, 2, 4, 6), (1, 3, 5, 7)]),
        ("mesh['a'=8,'b'=1] {'a'}", [tuple(range(8))]),
        ("mesh['a'=2,'b'=4] {'a'}", [(0, 4), (1, 5), (2, 6), (3, 7)]),
        ("mesh['a'=2,'b'=2,'c'=2] {'c','a'}", [(0, 4, 1, 5), (2, 6, 3, 7)]),
        ("mesh['a'=2,'b'=4], device_ids=([4,2]T(1,0)) {'b'}", [(0, 2, 4, 6), (1, 3, 5, 7)]),
        ("mesh['a'=8] {'a':(1)2}", [(0, 4), (1, 5), (2, 6), (3, 7)]),
        ("mesh['a'=2,'b'=4] {'b':(2)2}", [(0, 1), (2, 3), (4, 5), (6, 7)]),
        ("mesh['a'=8] {'a':(4)2,'a':(1)2}", [(0, 4, 1, 5), (2, 6, 3, 7)]),
    ],
)
def test_partitions(text: str, groups: list[tuple[int, ...]]) -> None:
    everybody = (tuple(range(8)),)
    found = partitions(PROGRAM.replace("GROUPS", text))
    assert sorted(found[0].groups) == groups and found[0].sure
    sure = dict(found)
    assert len(sure) == len(found)
    assert sure[((0, 1), (2, 3), (4, 5), (6, 7))]  # of the loop
    assert sure[everybody] == (groups == list(everybody))  # of the branch


def test_an_unknown_form() -> None:
    with pytest.raises(Unsupported, match=r"how XLA writes devices here: .*all-gather"):
        list(partitions(PROGRAM.replace("GROUPS", "v9(0..7)")))

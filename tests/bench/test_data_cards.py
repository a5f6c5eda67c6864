# SPDX-License-Identifier: Apache-2.0
"""docs/data.md says about data sets what is computed here."""

from __future__ import annotations

import subprocess

from support import ROOT, warm


def test_the_page_holds() -> None:
    page = (ROOT / "docs" / "data.md").read_text()
    done = subprocess.run(
        [warm.python(), str(ROOT / "bench" / "data_cards.py")],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    version, *rows = done.stdout.splitlines()
    rows = [each for each in rows if each.startswith("| ")]
    assert len(rows) > 10
    if version not in page:  # another release describes other data sets
        rows = [each for each in rows if not each.startswith("| descriptions")]
    for row in rows:
        assert row in page.splitlines(), "run bench/data_cards.py --write"

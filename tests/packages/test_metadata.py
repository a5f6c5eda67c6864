# SPDX-License-Identifier: Apache-2.0
"""What the installed package tells package indexes and pip about itself."""

from __future__ import annotations

import re
from importlib import metadata
from pathlib import Path

FOR_USERS = {"analyzer", "bench", "demo", "metrics", "tensorflow", "tensorflow-cpu"}


def test_extras_are_what_users_are_told_of(root: Path) -> None:
    """Tests, linters and the like are dependency groups, which no index sees."""
    told = metadata.metadata("rdmatensor").get_all("Provides-Extra") or []
    assert set(told) == FOR_USERS
    files = [*root.glob("*.md"), *root.glob("docs/*.md"), *root.glob("rdmatensor/**/*.py")]
    named = {
        name for file in files for name in re.findall(r"rdmatensor\[([\w-]+)\]", file.read_text())
    }
    assert named and named <= FOR_USERS

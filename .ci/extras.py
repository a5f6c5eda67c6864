# SPDX-License-Identifier: Apache-2.0
"""Prints the requirements of extras: `extras.py pyproject.toml test lint`.

So that tools can be installed before the project itself is built, from the one list there is.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path


def main() -> None:
    text = Path(sys.argv[1]).read_text()
    for extra in sys.argv[2:]:
        # Python 3.10 has no TOML reader.
        match = re.search(rf"^{extra} = \[(.*?)\]", text, re.MULTILINE | re.DOTALL)
        if match is None:
            raise SystemExit(f"{sys.argv[1]}: no extra {extra!r}")
        print(*re.findall(r'"([^"]+)"', match.group(1)))


if __name__ == "__main__":
    main()

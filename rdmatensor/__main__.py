# SPDX-License-Identifier: Apache-2.0
"""`python -m rdmatensor`: the command line; without arguments, what is installed."""

from __future__ import annotations

from .cli import main

if __name__ == "__main__":
    main(prog_name="rdmatensor")

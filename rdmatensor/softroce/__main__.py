# SPDX-License-Identifier: Apache-2.0
"""`python -m rdmatensor.softroce` runs `rdmatensor softroce` without the other commands."""

from __future__ import annotations

from .cli import softroce

if __name__ == "__main__":
    softroce(prog_name="rdmatensor softroce")

# SPDX-License-Identifier: Apache-2.0
"""The other process of a test: a Python that runs what the test sends it.

Run as a program with the number of an inherited socket. Each message is (kind, source, variables);
the answer is ("ok", value) or ("error", traceback). Names stay defined between messages.
"""

from __future__ import annotations

import sys
import traceback
from multiprocessing.connection import Connection
from typing import Any


def answer(names: dict[str, Any], kind: str, source: str, variables: dict[str, Any]) -> Any:
    names.update(variables)
    if kind == "get":
        return eval(source, names)
    exec(source, names)
    return None


def main() -> None:
    line: Connection[Any, Any] = Connection(int(sys.argv[1]))
    names: dict[str, Any] = {}
    while True:
        try:
            message = line.recv()
        except EOFError:  # the test is over
            return
        try:
            reply = ("ok", answer(names, *message))
        except Exception:
            reply = ("error", traceback.format_exc())
        line.send(reply)


if __name__ == "__main__":
    main()

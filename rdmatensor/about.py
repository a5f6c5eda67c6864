# SPDX-License-Identifier: Apache-2.0
"""What is installed, and the settings in force."""

from __future__ import annotations

import json
from pathlib import Path

from . import __version__, config


def show() -> None:
    """Prints it. ImportError when the compiled module is missing."""
    info = json.loads((Path(__file__).parent / "_build_info.json").read_text())
    plugin = f"built for {info['tensorflow']}" if info["tensorflow"] else "not built: "
    print(f"rdmatensor {__version__} ({info['compiler']})")
    print(f"TensorFlow plugin: {plugin}{info['no_tensorflow_because']}")
    print(
        f"RDMA verbs: {'not built: ' if info['no_verbs_because'] else 'built'}{info['no_verbs_because']}"
    )
    print("Settings (environment variables RDMATENSOR_<NAME>):")
    rows = [(s.name, s.value, s.range, s.doc) for s in config.table()]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
        print("  " + "  ".join([*cells, row[3]]))

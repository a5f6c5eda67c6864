# SPDX-License-Identifier: Apache-2.0
"""Runs the demo, with its options, between two hosts that are network namespaces. It needs root."""

from __future__ import annotations

import subprocess
import sys

from support.network import two_hosts


def main(*options: str) -> int:
    with two_hosts() as network:
        hosts = ",".join(f"{host.namespace}={host.address}" for host in network[:2])
        demo = [
            sys.executable,
            "examples/demo/compare.py",
            "--hosts",
            hosts,
            "--tasks-per-host",
            "2",
        ]
        demo += ["--ssh", "ip netns exec"]
        return subprocess.run([*demo, *options], check=False).returncode


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

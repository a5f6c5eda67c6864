# SPDX-License-Identifier: Apache-2.0
"""The SoftRoCE lab runs RDMA programs on machines without RDMA hardware.

    with Lab(hosts=2) as lab:
        print(lab.hosts[0].run(["ibv_devinfo"]).stdout)

The command line is `rdmatensor softroce`. See docs/softroce.md.
"""

from __future__ import annotations

from .errors import DeadlineExceeded, GuestDied, LabError, Unavailable
from .host import Host
from .lab import Lab
from .process import Done, Process

__all__ = [
    "DeadlineExceeded",
    "Done",
    "GuestDied",
    "Host",
    "Lab",
    "LabError",
    "Process",
    "Unavailable",
]

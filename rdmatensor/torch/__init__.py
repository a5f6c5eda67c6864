# SPDX-License-Identifier: Apache-2.0
"""A backend of torch.distributed for CPU and CUDA tensors: `init_process_group("rdmatensor")`.

Importing this module registers the backend. From torch 2.14 on, installing the package suffices.
"""

from __future__ import annotations

import os as _os

import torch.distributed as dist

from . import functional
from .identity import DEVICES
from .memory import bucket_hook, empty
from .process_group import ProcessGroup, create
from .synchronize import Synchronization, synchronize
from .window import Window

__all__ = [
    "ProcessGroup",
    "Synchronization",
    "Window",
    "bucket_hook",
    "empty",
    "register",
    "synchronize",
]


def register() -> None:
    """Make the backend known to torch.distributed. Importing the module does it; again, it does nothing.

    It also lets torch ask for large pages for tensors of 2 MB and more, of which the kernel copies to other
    processes much faster, unless the environment says something about that.
    """
    _os.environ.setdefault(
        "THP_MEM_ALLOC_ENABLE", "1"
    )  # torch reads it when it allocates the first one
    if "RDMATENSOR" not in dist.Backend._plugins:
        dist.Backend.register_backend(
            "rdmatensor", create, extended_api=True, devices=list(DEVICES)
        )


register()
_library = functional.register()

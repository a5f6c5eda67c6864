# SPDX-License-Identifier: Apache-2.0
"""Events for torch's profiler, one for each operation: rdmatensor:all_reduce and others."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import torch

PREFIX = "rdmatensor:"

is_profiling = torch._C._autograd._profiler_enabled


def begin(kind: str, tensors: Sequence[torch.Tensor]) -> Any:
    """Begin an event that has the shapes of `tensors`. Return its handle for end()."""
    return torch.autograd._record_function_with_args_enter(PREFIX + kind, *tensors)


def end(handle: Any) -> None:
    """End an event.

    Another thread does it, which marks the event as asynchronous: the operation may outlast the caller's
    events, and then would not fit into one of them.
    """
    exit_event = torch.autograd._record_function_with_args_exit
    thread = threading.Thread(target=exit_event, args=(handle,), name="rdmatensor-profile")
    thread.start()
    thread.join()

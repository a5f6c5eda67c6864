# SPDX-License-Identifier: Apache-2.0
"""Servers of protocol "grpc" become such of another protocol.

The ServerDef is rewritten on its way from TensorFlow's Python into its C functions, so that everything above,
tests included, sees what it always sees.
"""

from __future__ import annotations

import os
import re
from types import ModuleType
from typing import Any

from . import counters

SESSIONS = re.compile("TF_NewServer")
EAGER = re.compile("TFE_Context(Set|Update)ServerDef.*|TFE_EnableCollectiveOps")


def switched(argument: object) -> object:
    """A serialized ServerDef of protocol "grpc" with the other protocol; anything else as it is."""
    if not isinstance(argument, bytes):
        return argument
    from tensorflow.core.protobuf import tensorflow_server_pb2

    server_def = tensorflow_server_pb2.ServerDef.FromString(argument)
    if server_def.protocol != "grpc":
        return argument
    server_def.protocol = os.environ["CONFORMANCE_PROTOCOL"]
    counters.watch_plugin()
    return server_def.SerializeToString()


def switch(module: ModuleType, pattern: re.Pattern[str]) -> None:
    """Replaces the functions of `module` whose names match. Raises ImportError if there is none."""
    names = [name for name in dir(module) if pattern.fullmatch(name)]
    if not names:
        raise ImportError(f"{module.__name__} has no function {pattern.pattern}")
    for name in names:
        setattr(module, name, with_switched(getattr(module, name)))


def with_switched(function: Any) -> Any:
    """`function`, with each ServerDef among its arguments switched."""

    def call(*arguments: object, **named: object) -> object:
        return function(
            *map(switched, arguments), **{name: switched(value) for name, value in named.items()}
        )

    return call


def switch_sessions(module: ModuleType) -> None:
    """tf.distribute.Server and what starts one."""
    switch(module, SESSIONS)


def switch_eager(module: ModuleType) -> None:
    """Remote devices, and collectives in eager mode."""
    switch(module, EAGER)

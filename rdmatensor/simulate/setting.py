# SPDX-License-Identifier: Apache-2.0
"""The simulated cluster's numbers, and the options of the command that set them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any

import click

from .. import units


class Amount(click.ParamType):  # type: ignore[type-arg]
    """What `read` makes of a text. Its ValueError is the user's."""

    name = "amount"

    def __init__(self, read: Callable[[str], Any]) -> None:
        self._read = read

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        """Return what the text says; anything else as it is."""
        try:
            return self._read(value) if isinstance(value, str) else value
        except ValueError as error:
            self.fail(str(error), param, ctx)


_TIME, _BYTES = Amount(units.latency), Amount(units.bandwidth)


def _option(flag: str, default: Any, kind: Any, metavar: str | None, text: str, **more: Any) -> Any:
    option = partial(
        click.option, flag, default=default, type=kind, metavar=metavar, help=text, **more
    )
    if isinstance(default, str):
        default = kind.convert(default, None, None)
    return field(default=default, metadata={"option": option})


_number = partial(_option, show_default=True)


@dataclass(frozen=True)
class Setting:
    """One cluster. Times are in seconds, bandwidths in bytes per second."""

    workers: int = 8
    learning_rate: float = 0.4
    seed: int = 0
    restart_s: float = 5.0
    """How long synchronous training stands still when a worker dies, until there is a new group."""
    inside_bandwidth: float = 10e9
    """Of the memory that workers on one host share."""
    overlap: float = 0.5
    """The share of a step that the all-reduce of gradients can hide behind."""

    host: int = _number("--host", 1, click.IntRange(1), "N",
                        "Workers on one host, which share its link.")  # fmt: skip
    decay: bool = _option("--decay", False, bool, None,
                          "Let the learning rate fall to 0, as half a cosine.", is_flag=True)  # fmt: skip
    steps: int = _number("--steps", 200, click.IntRange(1), "N", "Steps of a worker, on average.")
    step_s: float = _number("--step", "100ms", _TIME, "TIME",
                            "Time of a step with 32 examples; a fifth of it is for any number.")  # fmt: skip
    jitter: float = _number("--jitter", 0.2, click.FloatRange(0), "X",
                            "Standard deviation of the logarithm of a step's time.")  # fmt: skip
    slow: int = _number("--slow", 0, click.IntRange(0), "N", "How many workers are slow.")
    slowness: float = _number("--slowness", 2.0, click.FloatRange(1), "X", "By which factor.")
    deaths: tuple[float, ...] = _option("--death", (), _TIME, "TIME",
                                        "A worker dies then, the last rank first; repeatable.",
                                        multiple=True)  # fmt: skip
    loss: float = _number("--loss", 0.0, click.FloatRange(0, 1), "SHARE",
                          "Exchanges of gossip that fail.")  # fmt: skip
    bandwidth: float = _number("--bandwidth", "10Gbit", _BYTES, "RATE",
                               "Of a host's link, each way.")  # fmt: skip
    latency_s: float = _number("--latency", "50us", _TIME, "TIME", "Of a message.")
    model_bytes: float = _number("--model-bytes", "46.8MB", _BYTES, "SIZE",
                                 "What the model counts as on the wire.")  # fmt: skip

    @property
    def hosts(self) -> int:
        """How many hosts the workers fill."""
        return math.ceil(self.workers / self.host)


def options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of a setting to a command."""
    for each in reversed(fields(Setting)):
        if each.metadata:
            command = each.metadata["option"](each.name)(command)
    return command

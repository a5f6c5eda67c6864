# SPDX-License-Identifier: Apache-2.0
"""Compare synchronizers: several seeds, each synchronizer at the learning rate that suits it."""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from statistics import mean, median, pstdev
from typing import Any

from .cluster import Curve
from .problem import Problem
from .setting import Setting
from .synchronizers import SYNCHRONIZERS, Synchronizer

# The examples of a step of `step_s`, and its share that does not depend on how many there are.
_EXAMPLES, _FIXED = 32, 0.2


def synchronizer(text: str) -> tuple[Callable[..., Synchronizer], dict[str, Any]]:
    """Return the class and the arguments that "LocalSGD(period=8)" names. ValueError if it names none."""
    try:
        called: Any = ast.parse(text.strip(), mode="eval").body
        if isinstance(called, ast.Name):
            called = ast.Call(called, [], [])
        make = SYNCHRONIZERS[called.func.id] if not called.args else None
        arguments = {each.arg: ast.literal_eval(each.value) for each in called.keywords}
    except (AttributeError, KeyError, SyntaxError, ValueError):
        make, arguments = None, {}
    if make is None or None in arguments:
        raise ValueError(
            f"{text!r} names no synchronizer: give one of {', '.join(SYNCHRONIZERS)}, with arguments "
            "by name: LocalSGD(period=8)"
        )
    return make, arguments


@dataclass(frozen=True)
class Study:
    """What is compared on which clusters. `batch` is that of all workers together."""

    synchronizers: tuple[str, ...]
    workers: tuple[int, ...]
    learning_rates: tuple[float, ...]
    seeds: int
    target: float
    batch: int
    setting: Setting

    def one(self, text: str, workers: int, learning_rate: float, seed: int) -> Curve:
        """Train once."""
        make, arguments = synchronizer(text)
        batch = max(1, self.batch // workers)
        step = self.setting.step_s * (_FIXED + (1 - _FIXED) * batch / _EXAMPLES)
        setting = dataclasses.replace(
            self.setting, workers=workers, learning_rate=learning_rate, seed=seed, step_s=step
        )
        try:
            return make(setting, Problem(batch), **arguments).run()
        except TypeError as error:
            raise ValueError(f"{text}: {error}") from None


@dataclass(frozen=True)
class Outcome:
    """One synchronizer on one cluster, at its best learning rate; a number for each seed, None: never."""

    synchronizer: str
    workers: int
    learning_rate: float
    target: float
    seconds: list[float | None]
    nbytes: list[float | None]
    """What a host had sent until then."""
    final: list[float]
    curve: Curve
    """That of the first seed."""

    def middle(self, values: Sequence[float | None]) -> float | None:
        """Return the median over all seeds; None if half of them never reached the target."""
        known = median(float("inf") if each is None else each for each in values)
        return None if known == float("inf") else known

    def record(self) -> dict[str, Any]:
        """Return all of it for JSON."""
        return dataclasses.asdict(self) | {
            "median_seconds": self.middle(self.seconds),
            "median_bytes": self.middle(self.nbytes),
            "mean_final": mean(self.final),
            "spread_final": pstdev(self.final),
        }


def _outcome(task: tuple[Study, str, int]) -> Outcome:
    study, text, workers = task

    def rank(curve: Curve) -> tuple[float, float]:
        reached = curve.reached(study.target)
        return (reached[0] if reached else float("inf"), -curve.final)

    tried = {each: study.one(text, workers, each, 0) for each in study.learning_rates}
    best = min(tried, key=lambda each: rank(tried[each]))
    curves = [
        tried[best],
        *(study.one(text, workers, best, seed) for seed in range(1, study.seeds)),
    ]
    reached = [curve.reached(study.target) for curve in curves]
    return Outcome(
        text,
        workers,
        best,
        study.target,
        [each[0] if each else None for each in reached],
        [each[1] if each else None for each in reached],
        [curve.final for curve in curves],
        curves[0],
    )


def outcomes(study: Study, jobs: int) -> Iterator[Outcome]:
    """Compare each synchronizer on each cluster. ValueError if one cannot be made."""
    tasks = [(study, text, size) for size in study.workers for text in study.synchronizers]
    for text in study.synchronizers:
        synchronizer(text)
    if jobs == 1:
        yield from map(_outcome, tasks)
        return
    with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:
        yield from pool.map(_outcome, tasks)

# SPDX-License-Identifier: Apache-2.0
"""Merge what the metrics of a Keras model have counted in several processes."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import keras
import numpy as np
import numpy.typing as npt

from ..backend.base import backend
from ..backend.interim import until_fit_ends
from ..backend.names import plain
from ..backend.optimizers import sync_of
from ..run.session import Session
from .additive import added_by, watch_metric

_Array = npt.NDArray[Any]


class Counted(NamedTuple):
    """The counts of metrics in this process since they were reset, and what they make of them."""

    states: list[tuple[Any, _Array]]
    """The variables of the metrics, and their values."""
    results: dict[str, Any]


def watch(model: Any) -> None:
    """Find out how metrics of the user's own classes change their states. Call it before the first step."""
    given = getattr(getattr(model, "_compile_metrics", None), "_user_metrics", None)
    weighted = getattr(getattr(model, "_compile_metrics", None), "_user_weighted_metrics", None)
    for each in [*keras.tree.flatten([given, weighted]), *metrics_of(model)]:
        if isinstance(each, keras.metrics.Metric):
            watch_metric(each)


def counted(model: Any) -> Counted:
    """Return what the metrics have counted so far, as a copy: they may be reset afterwards."""
    unique = {id(each): each for metric in metrics_of(model) for each in metric.variables}
    return Counted([(each, _value(each)) for each in unique.values()], _results(model))


def merged(
    run: Session, model: Any, logs: Mapping[str, Any], parts: Mapping[str, Counted]
) -> dict[str, Any]:
    """Return the logs of a process that had counted what all have counted. All processes call it.

    `parts` has what was counted, by the start of the names of its logs: {"": of training, "val_": of
    validation}. The states of metrics are added up, and results computed from the sums. A log is the result
    of the metric that has this value in every process, whatever its name; without such a metric, it is the
    mean over the processes. So is the result of a metric whose states cannot be added, which is said once.
    Logs that are no numbers stay as they are. The metrics keep their states.
    """
    names = [name for name in sorted(logs, key=plain) if _is_number(logs[name])]
    if run.size == 1 or not names:
        return dict(logs)
    fixed = _not_added(model)
    sums = [
        value
        for part in parts.values()
        for variable, value in part.states
        if id(variable) not in fixed
    ]
    equal = _which_are_equal(names, logs, parts)
    own = [np.asarray(logs[name], np.float64) for name in names]
    detail = f"metrics of an epoch ({', '.join(map(plain, names))})"
    summed = _sum(run, [*sums, equal, *own], detail)
    totals, everywhere, means = summed[: len(sums)], summed[len(sums)], summed[len(sums) + 1 :]
    found = {name: value / run.size for name, value in zip(names, means, strict=True)}
    left = iter(totals)
    results = [each for part in parts.values() for each in _results_of(model, fixed, left, part)]
    if fixed:  # then some results are this process's own
        results = [each / run.size for each in _sum(run, results, "results of metrics")]
    for row, name in enumerate(names):
        for column in _in_order(name, parts):
            if everywhere[row, column] == run.size:
                found[name] = results[column]
                break
    return dict(logs) | {
        name: float(each) if np.ndim(each) == 0 else each for name, each in found.items()
    }


def metrics_of(model: Any) -> Iterator[Any]:
    """Yield all metrics of a model, those in others too."""
    waiting = [*model.metrics, *getattr(model, "_metrics", [])]
    seen: set[int] = set()
    while waiting:
        metric = waiting.pop(0)
        if id(metric) in seen:
            continue
        seen.add(id(metric))
        yield metric
        waiting += [*getattr(metric, "metrics", []), *metric._metrics]


def _value(variable: Any) -> _Array:
    value: _Array = keras.ops.convert_to_numpy(variable)
    return value


def _results(model: Any) -> dict[str, Any]:
    """Return what the metrics say, also those that the model does not list."""
    listed = {id(each) for each in model.metrics}
    others = [each for each in getattr(model, "_metrics", []) if id(each) not in listed]
    found = {each.name: each.result() for each in others} | model.get_metrics_result()
    flat: dict[str, Any] = {}
    for name, value in found.items():
        flat.update(value if isinstance(value, dict) else {name: value})
    return {name: _array(each) for name, each in flat.items() if _is_number(each)}


def _is_number(value: Any) -> bool:
    return _array(value).dtype.kind in "biuf"


def _array(value: Any) -> _Array:
    """Return a tensor, also of a GPU, or something else as an array."""
    return np.asarray(keras.ops.convert_to_numpy(value) if keras.ops.is_tensor(value) else value)


def _not_added(model: Any) -> set[int]:
    """Return the ids of the metrics' variables that are no sums over examples."""
    found: set[int] = set()
    for metric in metrics_of(model):
        added = added_by(metric)
        if added is None and not getattr(metric, "_rdmatensor_said", False):
            object.__setattr__(metric, "_rdmatensor_said", True)
            warnings.warn(
                f"the metric {metric.name} cannot be merged over the processes, because its update_state() "
                "does more than add to its variables: logs have the mean of the processes' results. Keep "
                "sums and counts in variables that begin with 0, and compute the rest in result()",
                stacklevel=2,
            )
        for number, variable in enumerate(metric.variables):
            if added is None or number not in added:
                found.add(id(variable))
    return found


def _sum(run: Session, values: list[_Array], detail: str) -> list[_Array]:
    """Return the sums over all processes, in one operation."""
    flat = np.concatenate([np.ravel(each).astype(np.float64) for each in values])
    total = backend().all_reduce(run, flat, "sum", detail)
    ends = np.cumsum([each.size for each in values])[:-1]
    return [
        part.reshape(each.shape) for part, each in zip(np.split(total, ends), values, strict=True)
    ]


def _columns(parts: Mapping[str, Counted]) -> list[tuple[str, str, Any]]:
    return [
        (start, name, value)
        for start, part in parts.items()
        for name, value in part.results.items()
    ]


def _which_are_equal(
    names: list[str], logs: Mapping[str, Any], parts: Mapping[str, Counted]
) -> _Array:
    """Return which log has which metric's value, in this process."""
    columns = _columns(parts)
    found = np.zeros([len(names), len(columns)])
    for row, name in enumerate(names):
        value = np.asarray(logs[name])
        for column, (_, _, result) in enumerate(columns):
            if value.shape == result.shape:
                found[row, column] = np.allclose(value, result, rtol=1e-5, equal_nan=True)
    return found


def _in_order(name: str, parts: Mapping[str, Counted]) -> list[int]:
    """Return the columns whose value a log may have: first the metric of its name, then others alike."""
    start = max((each for each in parts if name.startswith(each)), key=len, default="")
    columns = _columns(parts)
    order = [i for i, each in enumerate(columns) if each[0] == start]
    return sorted(order, key=lambda i: start + columns[i][1] != name)


def _results_of(
    model: Any, fixed: set[int], totals: Iterator[_Array], part: Counted
) -> list[_Array]:
    """Return what the metrics make of these sums."""
    before = [(variable, _value(variable)) for variable, _ in part.states]
    try:
        for variable, value in part.states:
            if id(variable) in fixed:
                variable.assign(value)
                continue
            total = next(totals)
            variable.assign(np.rint(total) if value.dtype.kind in "iu" else total)
        results = _results(model)
        return [np.asarray(results[name], np.float64) for name in part.results]
    finally:
        for variable, value in before:
            variable.assign(value)


class Logs(keras.callbacks.Callback):  # type: ignore[misc]
    """Callback that merges the metrics of training and validation, once an epoch and in one operation."""

    def __init__(self, run: Session) -> None:
        super().__init__()
        self._run = run
        self._in_fit = False
        self._counted: dict[str, Counted] = {}

    def on_train_begin(self, logs: Any = None) -> None:
        """Forget what an earlier fit has counted."""
        self._in_fit = True
        until_fit_ends(self.model, self._end_fit)
        self._counted.clear()
        watch(self.model)

    def _end_fit(self) -> None:
        self._in_fit = False

    def on_test_begin(self, logs: Any = None) -> None:
        """Keep what training has counted: Keras resets the metrics now."""
        self._keep("")  # Keras resets the metrics now

    def on_test_end(self, logs: Any = None) -> None:
        """Keep what validation has counted."""
        self._keep("val_")

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Put the merged metrics into the logs."""
        if not self._counted:
            self._keep("")
        if logs and self._counted:
            logs.update(merged(self._run, self.model, logs, self._counted))
        self._counted.clear()

    def _keep(self, start: str) -> None:
        if self._in_fit and sync_of(getattr(self.model, "optimizer", None)).waits:
            self._counted[start] = counted(self.model)

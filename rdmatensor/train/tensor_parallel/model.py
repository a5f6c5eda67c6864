# SPDX-License-Identifier: Apache-2.0
"""Split models: cut their layers, and save them as if they were whole."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras
import numpy as np

from ...errors import UsageError
from ..backend import mixin
from ..backend.tensorflow import operations
from ..keras.saving import WholeModel
from ..run.session import current
from .choice import choose
from .groups import Groups
from .layers import LayerCut, Mode, cut_layer


class SplitModel(WholeModel):
    """The class that `split` puts in front of a model's. All processes call its methods."""

    _rdmatensor_groups: Groups

    def fit(self, *arguments: Any, **named: Any) -> Any:
        """Train. If a member is lost, processes of other groups learn of it too."""
        with self._rdmatensor_groups.ending_together():
            return super().fit(*arguments, **named)  # type: ignore[misc]

    def train_on_batch(self, *arguments: Any, **named: Any) -> Any:
        """Train one step, as fit() does."""
        with self._rdmatensor_groups.ending_together():
            return super().train_on_batch(*arguments, **named)  # type: ignore[misc]


def split(
    model: Any,
    group_size: int | None = None,
    *,
    layers: Mapping[str, Mode] | None = None,
    period: int = 1,
    smallest: int = 1 << 20,
) -> Any:
    """Cut the large dense layers of a Keras model over groups of processes. Return the model, changed.

    Each of `group_size` successive ranks (None: all) keeps a strip of the weights of these layers, and of the
    optimizer's state; all other layers are trained as before, by averages of gradients. To float accuracy the
    losses are those of the whole model. In every forward and backward pass, the processes of a group exchange
    activations, so they need batches of equal size in fit(), evaluate() and predict().

    Cut are Dense layers with at least `smallest` weights, or those that `layers` names: {"fc1": "column",
    "fc2": "row"}. By "column", a process has some of the outputs; by "row", some of the inputs; a column
    layer that a row layer follows exchanges nothing between the two. With a `period`, groups train apart, and
    the mean of their parameters is taken every so many steps; otherwise gradients are averaged over all
    groups in every step.

    All processes call it, after init() and before the optimizer is built; the weights are rank 0's. Use
    distribute() for the optimizer, with AllReduce. save(), save_weights() and load_weights() treat the model
    as a whole, and have to be called by all processes. Alone, a process keeps the model as it is.

    Raises UsageError if the model is not built, is no Sequential or functional one, or has nothing that can
    be cut so; and what init() raises if a process is lost.
    """
    run = current()
    size = run.size if group_size is None else group_size
    if period < 1 or size < 1:
        raise UsageError(f"split(group_size={group_size}, period={period}): both are at least 1")
    if run.size == 1:
        return model
    if run.size % size:
        raise UsageError(
            f"{run.size} processes cannot form groups of {size}: group_size has to divide their number"
        )
    if size == 1:
        raise UsageError(
            "split(group_size=1) cuts nothing: leave it out; see also LocalSGD(period)"
        )
    if not isinstance(model, keras.Model) or not model.built:
        raise UsageError("split() takes a Keras model that is built: give it an Input")
    if isinstance(model, SplitModel):
        raise UsageError("the model is split already")
    if getattr(getattr(model, "optimizer", None), "built", False):
        raise UsageError("split the model before its optimizer is built: before compile()")
    choices = choose(model, layers, smallest, size)
    groups = Groups(run, size, period)
    for choice in choices:
        layer_cut = LayerCut(groups, choice.mode, choice.takes_strips, choice.gives_strips)
        cut_layer(choice.layer, layer_cut)
        operations.trim()
        for passed in choice.passed:
            seeds = getattr(passed, "seed_generator", None)
            if seeds is not None:  # strips drop out different units, although programs are equal
                seeds.state.assign(np.asarray(seeds.state) + np.array([run.rank, 0], np.uint32))
    mixin.add(model, SplitModel, _rdmatensor_run=run, _rdmatensor_groups=groups)
    return model

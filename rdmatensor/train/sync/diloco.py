# SPDX-License-Identifier: Apache-2.0
"""DiLoCo: processes train apart, and an outer optimizer applies the mean of what they have moved.

Douillard et al. 2023, arXiv 2311.08105; in fragments: Streaming DiLoCo, 2025, arXiv 2501.18512.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ...errors import UsageError
from ..run.membership import Membership
from . import rules
from .base import Array, Parameters, average, having, same_size
from .compression import Compression


class DiLoCo(Parameters):
    """Apply an outer Nesterov step (`learning_rate`, `momentum`) to the mean change every `period` steps.

    With `fragments`, the variables are cut into so many parts, which are exchanged at different steps of a
    period. `compression` is TopK, PowerSGD or Quantized. The inner optimizer's state stays in each process.
    """

    def __init__(
        self,
        period: int = 50,
        fragments: int = 1,
        compression: Compression | None = None,
        learning_rate: float = 0.7,
        momentum: float = 0.9,
    ) -> None:
        if not 1 <= fragments <= period:
            raise UsageError(f"{fragments} fragments in {period} steps: give 1 to {period} of them")
        self._period, self._fragments = period, fragments
        self._rate, self._momentum = learning_rate, momentum
        plain = compression or Compression()
        self._compressions = [plain.fresh() for _ in range(fragments)]
        self._anchor: Array | None = None
        self._velocity: Array | None = None
        self._run: Membership | None = None
        self._starts: list[int] = []  # of the fragments, in variables
        self._bounds: list[int] = []  # of the fragments, in elements

    def begin(self, members: Membership, x: Array) -> int:
        """Take the common model as the anchor."""
        known, self._run = self._run is not None, members
        self._cut(x)
        # Other layers may be trained than before; what a backup kept has to fit.
        if self._anchor is None or (known and self._anchor.size != x.size):
            self._anchor, self._velocity = x.copy(), np.zeros_like(x)
            # Where processes have left the group and joined it again, each may go on with a model of its own.
            average(members, self._anchor, "the common model")
        else:
            self._anchor = same_size(self._anchor, x.size)
        return self._due_after(0)

    def _cut(self, x: Array) -> None:
        """Cut between variables, into parts of about the same size."""
        shapes = self.shapes or [x.shape]
        ends = np.cumsum([int(np.prod(shape)) for shape in shapes])
        wanted = [x.size * i / self._fragments for i in range(self._fragments)]
        starts = [0, *(int(np.argmin(np.abs(ends - each))) + 1 for each in wanted[1:])]
        self._starts = [*starts, len(shapes)]
        self._bounds = [0, *(int(ends[each - 1]) for each in starts[1:]), x.size]

    def _due_after(self, step: int) -> int:
        following = step + 1
        while rules.fragment_due(following, self._period, self._fragments) is None:
            following += 1
        return following

    def exchange(self, x: Array, step: int, learning_rate: float) -> int:
        """Make the outer step of the fragment that is due."""
        fragment = rules.fragment_due(step, self._period, self._fragments)
        if fragment is not None:
            self._outer_step(x, fragment, step)
        return self._due_after(step)

    def conclude(self, x: Array, step: int) -> None:
        """Average without the outer optimizer, whose momentum stands for whole periods."""
        average(self._run, x, f"the models after step {step}, the last one")
        self._anchor = x.copy()

    def _outer_step(self, x: Array, fragment: int, step: int) -> None:
        assert self._run is not None and self._run.group is not None
        assert self._anchor is not None and self._velocity is not None
        part = slice(self._bounds[fragment], self._bounds[fragment + 1])
        if part.start >= part.stop:
            return  # there are more fragments than variables
        shapes = list(self.shapes or [x.shape])[self._starts[fragment] : self._starts[fragment + 1]]
        moved = rules.outer_gradient(self._anchor[part], x[part])
        name = f"fragment {fragment + 1} of {self._fragments} after step {step}"
        mean = self._compressions[fragment].mean(
            self._run.group, moved, shapes, name, self._run.timeout
        )
        self._anchor[part], self._velocity[part] = rules.nesterov(
            self._anchor[part], self._velocity[part], mean, self._rate, self._momentum
        )
        x[part] = self._anchor[part]

    def state(self) -> Mapping[str, Array]:
        """Return anchor, velocity, and the errors of compressions."""
        if self._anchor is None or self._velocity is None:
            return {}
        kept = {"anchor": self._anchor, "velocity": self._velocity}
        for number, each in enumerate(self._compressions):
            kept.update({f"{number} {name}": value for name, value in each.state().items()})
        return kept

    def restore(self, state: Mapping[str, Array]) -> None:
        """Take anchor, velocity, and the errors of compressions."""
        if "anchor" not in state:
            return
        self._anchor, self._velocity = np.array(state["anchor"]), np.array(state["velocity"])
        for number, each in enumerate(self._compressions):
            each.restore(having(state, f"{number} "))

    def regroup(
        self, states: Sequence[Mapping[str, Array]], rank: int, size: int
    ) -> Mapping[str, Array]:
        """Return anchor and velocity, which are equal in all, and regrouped errors."""
        kept = {name: states[0][name] for name in ("anchor", "velocity") if name in states[0]}
        for number, each in enumerate(self._compressions):
            found = each.regroup([having(state, f"{number} ") for state in states], rank, size)
            kept.update({f"{number} {name}": value for name, value in found.items()})
        return kept

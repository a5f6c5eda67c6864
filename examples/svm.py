# SPDX-License-Identifier: Apache-2.0
"""A support vector machine trained by several processes, on the raw interface: one-sided reads and a group.

    rdmatensor launch -n 4 examples/svm.py [--data moons|...|cancer] [--eliminate early|lazy|none]

Each process has some of the rows, in a region that the others may read. Sequential minimal optimization
picks the two samples that violate optimality most: an all-gather tells all processes which. Their rows are
read from the processes that have them. Samples that will hardly become support vectors are eliminated from
the search, early or late, and when the rest has converged their gradients are reconstructed, so that wrongly
eliminated ones come back (Vishnu et al., arXiv 1406.5161). Rank 0 compares the result with
scikit-learn's SVC. The program needs numpy and scikit-learn. Without `rdmatensor launch`, one process trains
alone. Set OPENBLAS_NUM_THREADS=1 where processes share cores.
"""

from __future__ import annotations

import argparse
import os
import time
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

import rdmatensor
from rdmatensor.train.run.roles import join, role_of

Array = np.ndarray[Any, Any]

# When samples are first eliminated, and how often from then on: after so many iterations for each sample.
ELIMINATE = {"early": 0.01, "lazy": 0.5, "none": float("inf")}
_REST = 1e-12  # of a multiplier: at its bound within rounding


class Fit(NamedTuple):
    """What training found, the same at every process but for `multipliers`, which are of its own rows."""

    multipliers: Array
    bias: float
    objective: float
    iterations: int
    reconstructions: int
    seconds: float


@dataclass
class Rows:
    """All processes' rows. `bounds[r]` is the number of rank r's first row."""

    device: rdmatensor.Device | None
    group: rdmatensor.Group | None
    rank: int
    bounds: Array
    own: Array
    remotes: list[Any]
    region: Any = None

    @classmethod
    def share(
        cls, device: rdmatensor.Device | None, group: rdmatensor.Group | None, data: Array
    ) -> Rows:
        """Takes this process's part of the data, and opens the others'."""
        if device is None or group is None:
            return cls(None, None, 0, np.array([0, len(data)]), data.copy(), [None])
        bounds = np.linspace(0, len(data), group.size + 1).astype(int)
        mine = data[bounds[group.rank] : bounds[group.rank + 1]]
        region = device.allocate(mine.shape, mine.dtype, name=f"rows {group.rank}")
        region.array[:] = mine
        address = np.frombuffer(device.address.encode().ljust(64), np.uint8)
        addresses = group.all_gather(address).reshape(group.size, 64)
        remotes = [
            None
            if rank == group.rank
            else device.connect(bytes(each).decode().strip()).region(f"rows {rank}")
            for rank, each in enumerate(addresses)
        ]
        return cls(device, group, group.rank, bounds, region.array, remotes, region)

    def read(self, numbers: Array) -> Array:
        """Returns these rows, wherever they are: consecutive ones of a process by one read."""
        result = np.empty((len(numbers), self.own.shape[1]))
        waiting = []
        at = 0
        while at < len(numbers):
            owner = int(np.searchsorted(self.bounds, numbers[at], side="right")) - 1
            end = at + 1
            while end < len(numbers) and numbers[end] == numbers[end - 1] + 1:
                if numbers[end] >= self.bounds[owner + 1]:
                    break
                end += 1
            first = int(numbers[at] - self.bounds[owner])
            if owner == self.rank:
                result[at:end] = self.own[first : first + end - at]
            else:
                offset = first * result.shape[1] * result.itemsize
                waiting.append(self.remotes[owner].read_into(result[at:end], offset))
            at = end
        for each in waiting:
            each.wait()
        return result

    def total(self, values: Array) -> Array:
        """Returns the sum of all processes' arrays."""
        return values if self.group is None else self.group.all_reduce(values)

    def all(self, values: Array) -> Array:
        """Returns all processes' arrays, in the order of ranks."""
        if self.group is None:
            return values[None]
        return self.group.all_gather(values).reshape(self.group.size, *values.shape)


class Trainer:
    """One process's part of the training."""

    def __init__(
        self, rows: Rows, labels: Array, penalty: float, gamma: float, eliminate: str
    ) -> None:
        self.rows, self.penalty, self.gamma = rows, penalty, gamma
        begin, end = rows.bounds[rows.rank : rows.rank + 2]
        self.first = int(begin)
        self.labels = labels[begin:end]
        self.squares = np.einsum("ij,ij->i", rows.own, rows.own)
        self.multipliers = np.zeros(len(self.labels))
        # The gradient of each sample, times its label: with all multipliers at 0, -label.
        self.gradients = -self.labels.copy()
        self.every = ELIMINATE[eliminate] * len(labels)
        self.next = self.every
        self._activate(np.arange(len(self.labels)))

    def _activate(self, active: Array) -> None:
        """Goes on with these samples, whose rows and gradients are copied so that they lie together."""
        whole = len(active) == len(self.labels)
        self.active = active
        self.points = self.rows.own if whole else self.rows.own[active]
        self.norms = self.squares[active]
        self.current = self.gradients[active]
        # For each side, up and down: infinite where a sample may not move there, so that it is chosen last.
        self.closed = np.empty((2, len(active)))
        self._close(slice(None))

    def _close(self, at: Any) -> None:
        """Notes on which sides these active samples may move. A step changes that for two samples."""
        samples = self.active[at]
        multipliers, positive = self.multipliers[samples], self.labels[samples] > 0
        below = multipliers < self.penalty - _REST
        above = multipliers > _REST
        self.closed[0, at] = np.where(np.where(positive, below, above), 0.0, np.inf)
        self.closed[1, at] = np.where(np.where(positive, above, below), 0.0, -np.inf)

    def _keep(self) -> None:
        """Puts the gradients of the active samples back to those of all."""
        self.gradients[self.active] = self.current

    def kernel(self, points: Array, norms: Array, others: Array) -> Array:
        """Returns exp(-gamma |x - y|^2) for each point x and each of `others` y."""
        distance = points @ (-2.0 * others.T)
        distance += norms[:, None]
        distance += np.einsum("ij,ij->i", others, others)
        distance *= -self.gamma
        return np.exp(np.minimum(distance, 0.0, out=distance), out=distance)

    def extremes(self) -> Array:
        """Returns value, number, label and multiplier of the worst sample of all processes, by side."""
        own = np.zeros((2, 4))
        own[:, 0] = 1e300, -1e300
        for side, worst in enumerate((np.argmin, np.argmax)):
            values = self.current + self.closed[side]
            if len(values) == 0:
                continue
            at = int(worst(values))
            sample = int(self.active[at])
            value = min(max(float(values[at]), -1e300), 1e300)
            own[side] = value, self.first + sample, self.labels[sample], self.multipliers[sample]
        # Both sides of all processes travel in one operation.
        table = self.rows.all(own)
        up, low = int(table[:, 0, 0].argmin()), int(table[:, 1, 0].argmax())
        return np.stack([table[up, 0], table[low, 1]])

    def step(self, pair: Array) -> None:
        """Optimizes two multipliers, and updates the gradients of active samples."""
        numbers = pair[:, 1].astype(int)
        others = self.rows.read(numbers)
        kernel = self.kernel(self.points, self.norms, others)
        distance = others[0] - others[1]
        curve = 2.0 - 2.0 * np.exp(-self.gamma * float(distance @ distance))
        room = [
            self.penalty - pair[0, 3] if pair[0, 2] > 0 else pair[0, 3],
            pair[1, 3] if pair[1, 2] > 0 else self.penalty - pair[1, 3],
        ]
        change = min((pair[1, 0] - pair[0, 0]) / max(curve, 1e-12), *room)
        for number, sign in zip(numbers - self.first, (1.0, -1.0), strict=True):
            if 0 <= number < len(self.labels):
                moved = self.multipliers[number] + sign * self.labels[number] * change
                self.multipliers[number] = min(max(moved, 0.0), self.penalty)
                self._close(np.searchsorted(self.active, number))
        self.current += change * (kernel[:, 0] - kernel[:, 1])

    def eliminate(self, up: float, low: float) -> None:
        """Leaves out samples at a bound whose gradients are beyond both extremes."""
        self._keep()
        not_up, not_low = self.closed != 0.0
        useless = (not_low & (self.current > low)) | (not_up & (self.current < up))
        self._activate(self.active[~useless])

    def reconstruct(self) -> None:
        """Computes the gradients of eliminated samples from all support vectors, and takes all back."""
        support = np.zeros((self.rows.bounds[-1], 2))
        own = slice(self.first, self.first + len(self.labels))
        support[own] = np.stack([self.multipliers * self.labels, self.multipliers > 0], axis=1)
        support = self.rows.total(support)
        numbers = np.flatnonzero(support[:, 1])
        out = np.ones(len(self.labels), bool)
        out[self.active] = False
        sums = np.zeros(int(out.sum()))
        for begin in range(0, len(numbers), 256):
            part = numbers[begin : begin + 256]
            kernel = self.kernel(self.rows.own[out], self.squares[out], self.rows.read(part))
            sums += kernel @ support[part, 0]
        self._keep()
        self.gradients[out] = sums - self.labels[out]
        self._activate(np.arange(len(self.labels)))

    def run(self, tolerance: float, most: int) -> Fit:
        """Trains until no pair violates optimality by more than the tolerance."""
        begin = time.perf_counter()
        iterations = reconstructions = 0
        # The first reconstruction comes early, at twenty times the tolerance.
        wanted = 20 * tolerance if np.isfinite(self.every) else tolerance
        eliminated = False
        while True:
            pair = self.extremes()
            up, low = pair[0, 0], pair[1, 0]
            if low - up <= wanted or iterations == most:
                if eliminated:
                    self.reconstruct()
                    reconstructions, eliminated = reconstructions + 1, False
                    wanted, self.next = tolerance, iterations + self.every
                    continue
                if wanted == tolerance or iterations == most:
                    break
                wanted = tolerance
                continue
            self.step(pair)
            iterations += 1
            if iterations >= self.next:
                self.eliminate(up, low)
                eliminated, self.next = True, iterations + self.every
        self._keep()
        dual = 0.5 * float(self.multipliers * self.labels @ (self.gradients + self.labels))
        parts = self.rows.total(np.array([dual, float(self.multipliers.sum())]))
        seconds = time.perf_counter() - begin
        bias = -(up + low) / 2
        return Fit(
            self.multipliers, bias, parts[0] - parts[1], iterations, reconstructions, seconds
        )


def fit(
    device: rdmatensor.Device | None,
    group: rdmatensor.Group | None,
    data: Array,
    labels: Array,
    penalty: float,
    gamma: float,
    eliminate: str = "early",
    tolerance: float = 1e-3,
    most: int = 1_000_000,
) -> Fit:
    """Trains on `data` with `labels` of 1 and -1. Each process uses its part; every member calls it."""
    rows = Rows.share(device, group, np.ascontiguousarray(data, np.float64))
    if group is not None:
        group.barrier()
    found = Trainer(rows, labels.astype(np.float64), penalty, gamma, eliminate).run(tolerance, most)
    if group is not None:
        group.barrier()  # nobody reads any more
        rows.region.close()
    return found


# ---- data -------------------------------------------------------------------------------------------


NAMES = ("moons", "circles", "classes", "wide", "cancer")


class Case(NamedTuple):
    data: Array
    labels: Array
    penalty: float
    gamma: float


def case(name: str, count: int | None = None) -> Case:
    """Returns a data set that scikit-learn makes or brings along, with columns of equal variance."""
    from sklearn import datasets

    if name == "moons":
        data, labels = datasets.make_moons(count or 6000, noise=0.15, random_state=1)
        penalty, gamma = 10.0, 2.0
    elif name == "circles":
        data, labels = datasets.make_circles(count or 6000, noise=0.1, factor=0.6, random_state=1)
        penalty, gamma = 10.0, 2.0
    elif name == "classes":
        data, labels = datasets.make_classification(
            count or 6000, 20, n_informative=8, class_sep=1.5, flip_y=0.01, random_state=1
        )
        penalty, gamma = 10.0, 0.05
    elif name == "wide":
        data, labels = datasets.make_classification(
            count or 6000,
            100,
            n_informative=20,
            n_redundant=50,
            class_sep=1.5,
            flip_y=0.01,
            random_state=1,
        )
        penalty, gamma = 10.0, 0.005
    else:
        data, labels = datasets.load_breast_cancer(return_X_y=True)
        penalty, gamma = 10.0, 0.03
    data = (data - data.mean(axis=0)) / data.std(axis=0)
    order = np.random.default_rng(1).permutation(len(data))[:count]
    return Case(data[order], np.where(labels[order] > 0, 1.0, -1.0), penalty, gamma)


def reference(each: Case) -> tuple[float, float]:
    """Returns the objective of scikit-learn's SVC, which is libsvm's, and its seconds."""
    from sklearn.metrics.pairwise import rbf_kernel
    from sklearn.svm import SVC

    begin = time.perf_counter()
    model = SVC(C=each.penalty, gamma=each.gamma, tol=1e-3).fit(each.data, each.labels)
    seconds = time.perf_counter() - begin
    dual = model.dual_coef_[0]
    kernel = rbf_kernel(model.support_vectors_, gamma=each.gamma)
    return float(0.5 * dual @ kernel @ dual - np.abs(dual).sum()), seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--data", choices=NAMES, default="moons")
    parser.add_argument("--eliminate", choices=tuple(ELIMINATE), default="early")
    parser.add_argument("--count", type=int, help="number of samples")
    options = parser.parse_args()
    each = case(options.data, options.count)
    role = role_of(os.environ, None, None, None)
    if role.size == 1:
        found = fit(None, None, *each, options.eliminate)
    else:
        port = int(role.root.rpartition(":")[2]) if role.rank == 0 else 0
        with (
            rdmatensor.Device(f"rank {role.rank}", port=port) as device,
            join(device, role, "svm", 60.0) as group,
        ):
            found = fit(device, group, *each, options.eliminate)
    if role.rank == 0:
        objective, seconds = reference(each)
        print(
            f"{options.data}: {found.iterations} iterations in {found.seconds:.2f} s, "
            f"{found.reconstructions} reconstructions; objective {found.objective:.4f}, libsvm's "
            f"{objective:.4f} in {seconds:.2f} s; they differ by {abs(found.objective / objective - 1):.1e}",
            flush=True,
        )


if __name__ == "__main__":
    main()

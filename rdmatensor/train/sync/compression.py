# SPDX-License-Identifier: Apache-2.0
"""Average vectors over a group with fewer bytes. What is not sent is kept and added the next time.

A compression object belongs to one vector: it holds the errors of that vector. All processes get the same
result, to the bit with TopK and Quantized, and with PowerSGD if their numpy computes alike.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ..backend.base import backend
from . import rules
from .base import Array, Gradients

if TYPE_CHECKING:
    from ...group import Group
    from ..run.membership import Membership

Shapes = Sequence[tuple[int, ...]]
Codes = Literal["int8", "fp8"]
_CODERS = {"int8": (rules.to_int8, rules.from_int8), "fp8": (rules.to_fp8, rules.from_fp8)}
_TYPES = {"int8": np.int8, "fp8": np.uint8}


class Compression(Gradients):
    """The base of compressions, of gradients or for DiLoCo; itself, it compresses nothing.

    All dense gradients travel at once, when the backward pass is over.
    """

    averages = True

    def __init__(self) -> None:
        self.error: Array | None = None
        """What was left out so far."""

    def gradients(self, members: Membership, gradients: Sequence[Any], name: str) -> Sequence[Any]:
        """Return gradients as `mean` gives them of their vector."""

        def mean(vector: Array, shapes: Shapes, detail: str) -> Array:
            assert members.group is not None
            return self.mean(members.group, vector, shapes, detail, members.timeout)

        return backend().as_vector(members, gradients, mean, name, self.names)

    def mean(self, group: Group, vector: Array, shapes: Shapes, name: str, timeout: float) -> Array:
        """Return the mean over the group's members, who call it with vectors of equal sizes.

        `shapes` are those of the arrays in the vector; `timeout` is that of each operation, in seconds. If a
        member's vector is not finite, the result is not either, and errors stay as they were. Raises what
        Group's operations raise, and ValueError if a member sends what cannot be.
        """
        strange = np.array([not np.isfinite(vector).all()], np.float32)
        if group.all_reduce(strange, timeout=timeout, detail=f"finiteness of {name}")[0]:
            return np.full(vector.shape, np.nan, np.float32)
        return self._mean(group, vector.astype(np.float32, copy=False), shapes, name, timeout)

    def _mean(
        self, group: Group, vector: Array, shapes: Shapes, name: str, timeout: float
    ) -> Array:
        total = vector / np.float32(group.size)
        return group.all_reduce(total, out=total, timeout=timeout, detail=name)

    def state(self) -> Mapping[str, Array]:
        """Return the error."""
        return {} if self.error is None else {"error": self.error}

    def restore(self, state: Mapping[str, Array]) -> None:
        """Take the error."""
        self.error = state.get("error")

    def regroup(
        self, states: Sequence[Mapping[str, Array]], rank: int, size: int
    ) -> Mapping[str, Array]:
        """Return the mean of all errors: what was left out of the mean stays the same."""
        if not all(states):
            return {}
        return {
            name: np.asarray(np.mean([each[name] for each in states], axis=0, dtype=np.float32))
            for name in states[0]
        }

    def fresh(self) -> Compression:
        """Return another one like this, for another vector."""
        other = copy(self)
        other.restore({})
        return other

    def _wanted(self, vector: Array, decay: float = 1.0) -> Array:
        if self.error is None or self.error.shape != vector.shape:
            return vector.copy()
        wanted: Array = rules.with_error(vector, self.error, decay)
        return wanted


class TopK(Compression):
    """Send the largest elements, a share of all, as indices and codes; with `codes` None, as float32.

    `decay` multiplies the error each time (SparseLoCo, arXiv 2508.15706).
    """

    def __init__(
        self, share: float = 0.02, codes: Codes | None = "fp8", decay: float = 1.0
    ) -> None:
        super().__init__()
        if not 0 < share <= 1 or codes not in (None, *_CODERS):
            raise ValueError(
                f"TopK({share}, {codes!r}): a share above 0 up to 1; codes None, int8 or fp8"
            )
        self.share, self.codes, self._decay = share, codes, decay

    def _mean(
        self, group: Group, vector: Array, shapes: Shapes, name: str, timeout: float
    ) -> Array:
        wanted = self._wanted(vector, self._decay)
        count = rules.kept(self.share, wanted.size)
        places = rules.top_k(wanted, count).astype(np.uint32)
        message, sent = self._encoded(places, wanted[places])
        gathered = group.all_gather(message, timeout=timeout, detail=name)
        self.error = wanted - rules.scattered(places, sent, wanted.size)
        total = np.zeros(wanted.size, np.float32)
        for each in gathered.reshape(group.size, -1):
            total += rules.scattered(*self._decoded(each, count, wanted.size), wanted.size)
        return total / np.float32(group.size)

    def _encoded(self, places: Array, values: Array) -> tuple[Array, Array]:
        """Return the message as bytes, and what its values mean."""
        if self.codes is None:
            return np.concatenate([places.view(np.uint8), values.view(np.uint8)]), values
        to, back = _CODERS[self.codes]
        codes, scale = to(values)
        header = np.array([scale], np.float32)
        message = [places.view(np.uint8), header.view(np.uint8), codes.view(np.uint8)]
        return np.concatenate(message), back(codes, float(header[0]))

    def _decoded(self, message: Array, count: int, size: int) -> tuple[Array, Array]:
        places = np.frombuffer(message[: 4 * count].tobytes(), np.uint32)
        if places.max() >= size:
            raise ValueError(f"a member sent element {places.max()} of a vector with {size}")
        rest = message[4 * count :].tobytes()
        if self.codes is None:
            return places, np.frombuffer(rest, np.float32)
        codes = np.frombuffer(rest[4:], _TYPES[self.codes])
        return places, _CODERS[self.codes][1](codes, float(np.frombuffer(rest[:4], np.float32)[0]))


class Quantized(Compression):
    """Send a byte for each element, in both directions: members reduce a strip each, and send it to all."""

    def __init__(self, codes: Codes = "fp8") -> None:
        super().__init__()
        if codes not in _CODERS:
            raise ValueError(f"Quantized({codes!r}): give int8 or fp8")
        self.codes = codes
        self._strip_error: Array | None = None

    def state(self) -> Mapping[str, Array]:
        """Return the errors of the vector and of this member's strip."""
        if self.error is None or self._strip_error is None:
            return {}
        return {"error": self.error, "strip": self._strip_error}

    def restore(self, state: Mapping[str, Array]) -> None:
        """Take both errors."""
        super().restore(state)
        self._strip_error = state.get("strip")

    def regroup(
        self, states: Sequence[Mapping[str, Array]], rank: int, size: int
    ) -> Mapping[str, Array]:
        """Return the mean of all errors, and the error of the new strip."""
        if not all(states):
            return {}
        error = np.mean([each["error"] for each in states], axis=0, dtype=np.float32)
        strips = np.zeros((size, -(-error.size // size)), np.float32)
        strips.ravel()[: error.size] = np.concatenate([s["strip"] for s in states])[: error.size]
        return {"error": error, "strip": strips[rank]}

    def _mean(
        self, group: Group, vector: Array, shapes: Shapes, name: str, timeout: float
    ) -> Array:
        wanted = self._wanted(vector)
        width = -(-wanted.size // group.size)
        strips = np.zeros((group.size, width), np.float32)
        strips.ravel()[: wanted.size] = wanted
        messages, sent = zip(*(self._coded(strip) for strip in strips), strict=True)
        self.error = wanted - np.concatenate(sent)[: wanted.size]
        arrived = group.all_to_all(np.stack(messages), timeout=timeout, detail=f"strips of {name}")
        strip: Array = np.asarray(
            np.mean([self._decoded(each) for each in arrived], axis=0, dtype=np.float32)
        )
        if self._strip_error is not None and self._strip_error.shape == strip.shape:
            strip = rules.with_error(strip, self._strip_error)
        message, sent_strip = self._coded(strip)
        self._strip_error = strip - sent_strip
        whole = group.all_gather(message, timeout=timeout, detail=f"means of {name}")
        strips = whole.reshape(group.size, -1)
        return np.concatenate([self._decoded(each) for each in strips])[: wanted.size]

    def _coded(self, strip: Array) -> tuple[Array, Array]:
        to, back = _CODERS[self.codes]
        codes, scale = to(strip)
        header = np.array([scale], np.float32)
        message = np.concatenate([header.view(np.uint8), codes.view(np.uint8)])
        return message, back(codes, float(header[0]))

    def _decoded(self, message: Array) -> Array:
        scale = float(np.frombuffer(message[:4].tobytes(), np.float32)[0])
        return _CODERS[self.codes][1](message[4:].view(_TYPES[self.codes]), scale)


class PowerSGD(Compression):
    """Send each matrix as the product of two thin ones with `rank` columns, and other arrays as they are."""

    def __init__(self, rank: int = 4) -> None:
        super().__init__()
        if rank < 1:
            raise ValueError(f"PowerSGD(rank={rank}): give 1 or more")
        self.rank = rank
        self._rights: dict[int, Array] = {}

    def state(self) -> Mapping[str, Array]:
        """Return the error, and the right factors."""
        return {**super().state(), **{f"right {i}": each for i, each in self._rights.items()}}

    def restore(self, state: Mapping[str, Array]) -> None:
        """Take the error, and the right factors."""
        super().restore(state)
        self._rights = {
            int(name.removeprefix("right ")): np.array(each)
            for name, each in state.items()
            if name.startswith("right ")
        }

    def _mean(
        self, group: Group, vector: Array, shapes: Shapes, name: str, timeout: float
    ) -> Array:
        wanted = self._wanted(vector)
        ends = np.cumsum([int(np.prod(shape)) for shape in shapes])
        if not len(ends) or ends[-1] != wanted.size:
            raise ValueError(f"shapes {list(shapes)} are not those of {wanted.size} elements")
        parts = np.split(wanted, ends[:-1])
        matrices = {
            i: part.reshape(-1, shape[-1])
            for i, (part, shape) in enumerate(zip(parts, shapes, strict=True))
            if self._thin(shape)
        }
        lefts = [rules.power_left(m, self._right(i, m.shape[1])) for i, m in matrices.items()]
        whole = [part for i, part in enumerate(parts) if i not in matrices]
        *lefts, plain = _mean_of(
            group, [*lefts, _joined(whole)], f"left factors of {name}", timeout
        )
        lefts = [rules.orthonormal(each) for each in lefts]
        rights = [
            rules.power_right(m, left) for m, left in zip(matrices.values(), lefts, strict=True)
        ]
        if rights:
            rights = _mean_of(group, rights, f"right factors of {name}", timeout)
        result = np.empty_like(wanted)
        found = np.split(result, ends[:-1])
        sent_whole = iter(np.split(plain, np.cumsum([each.size for each in whole])[:-1]))
        error = np.zeros_like(wanted)
        errors = np.split(error, ends[:-1])
        thin = iter(zip(lefts, rights, strict=True))
        for i in range(len(parts)):
            if i not in matrices:
                found[i][:] = next(sent_whole)
                continue
            left, self._rights[i] = next(thin)
            found[i][:] = rules.power_result(left, self._rights[i]).ravel()
            errors[i][:] = parts[i] - found[i]
        self.error = error
        return result

    def _thin(self, shape: tuple[int, ...]) -> bool:
        """Return whether two factors of this array have fewer elements than it has."""
        if len(shape) < 2 or 0 in shape:
            return False
        rows, columns = int(np.prod(shape[:-1])), shape[-1]
        return self.rank < min(rows, columns) and self.rank * (rows + columns) < rows * columns

    def _right(self, number: int, columns: int) -> Array:
        if number not in self._rights:  # the same in all processes
            shape = (columns, self.rank)
            self._rights[number] = (
                np.random.default_rng(number).standard_normal(shape).astype(np.float32)
            )
        return self._rights[number]


def _joined(arrays: Sequence[Array]) -> Array:
    return np.concatenate([each.ravel() for each in arrays]) if arrays else np.zeros(0, np.float32)


def _mean_of(group: Group, arrays: Sequence[Array], name: str, timeout: float) -> list[Array]:
    """Return the mean of each array over the group, in one operation."""
    total = _joined(arrays) / np.float32(group.size)
    group.all_reduce(total, out=total, timeout=timeout, detail=name)
    ends = np.cumsum([each.size for each in arrays])[:-1]
    return [
        part.reshape(each.shape) for part, each in zip(np.split(total, ends), arrays, strict=True)
    ]

# SPDX-License-Identifier: Apache-2.0
"""Processes with different numbers of batches, in epochs that end with join(). Prints OK at the end.

With "die" as second argument, the last process is killed once the others have joined.
"""

import os
import signal
import sys
import time
from typing import Any

import numpy as np
import torch

import rdmatensor.horovod.torch as hvd

hvd.init()
r, n = hvd.rank(), hvd.size()


def same(found, expected):
    found = found.detach().float().numpy()
    np.testing.assert_allclose(found, np.broadcast_to(expected, found.shape), rtol=1e-3)


def refused(act, *arguments):
    try:
        act(*arguments)
    except hvd.HorovodInternalError as error:
        assert "has called join()" in str(error), error
    else:
        raise AssertionError("it was not refused")


def numbers(rank, count=5):
    return torch.arange(1.0, count + 1) * (rank + 1)


def ended(last):
    """Join, and check that all agree about the last one."""
    found = hvd.join()
    assert hvd.allgather_object(found) == [last] * n, (found, last)


if sys.argv[2:] == ["die"]:
    try:
        for step in range(1000 if r == n - 1 else 5):
            if step == 8:
                os.kill(os.getpid(), signal.SIGKILL)
            hvd.allreduce(numbers(r))
        hvd.join()
    except hvd.HorovodInternalError as error:
        print(f"lost: {error}", flush=True)
    sys.exit(0)

# Alone at the end, whoever is first, for every type and reduction, with operations under way at a join.
for last in range(n):
    order = [(last - each) % n for each in range(n)]  # how many batches each process lacks
    for dtype in (torch.float32, torch.float64, torch.int32, torch.bfloat16):
        handles = []
        for step in range(4 - order[r]):
            here = [each for each in range(n) if step < 4 - order[each]]
            total = sum(numbers(each) for each in here)
            x, y = numbers(r).to(dtype), torch.stack([numbers(r), numbers(r)], 1)
            handles += [
                (hvd.allreduce_async(x, name="x", op=hvd.Sum), total.to(dtype).float()),
                (hvd.allreduce_async_(x.clone(), name="x"), (total / n).to(dtype).float()),
                (
                    hvd.allreduce_async(y[:, 0], prescale_factor=0.5, postscale_factor=4.0),
                    2 * total / n,
                ),
                (hvd.allreduce_async(y[0, 0] - 1e9, op=hvd.Max), 0.0 if len(here) < n else -1e9),
                (hvd.allreduce_async(y[:0], op=hvd.Min), 0.0),
            ]
            for found in hvd.grouped_allreduce([x.long(), y, x.float()], op=hvd.Sum)[::2]:
                same(found, total)
            same(hvd.allreduce(y, compression=hvd.Compression.fp16)[:, 1], total / n)
            if step == 2:
                for handle, expected in handles[::-1]:
                    same(hvd.synchronize(handle), expected)
                handles = []
        if n == 3:
            time.sleep(0.01 * order[r])  # in any order
        ended(last)
        for handle, expected in handles:
            same(hvd.synchronize(handle), expected)

# Without an operation between, the last one is who has called it last.
for last in range(n):
    time.sleep(0.2 if r == last else 0)
    ended(last)

# What needs all is refused at those that go on, and spoils nothing.
for first in range(n):
    if r != first:
        x, rows = numbers(r), torch.sparse_coo_tensor([[r]], [[1.0]], (n, 1), check_invariants=True)
        while hvd.allreduce(torch.ones([]), op=hvd.Sum) == n:  # until the first one has joined
            pass
        under_way = hvd.allreduce_async(x)
        refused(hvd.allgather, x)
        refused(hvd.grouped_allgather, [x, x])
        refused(hvd.broadcast, x, 0)
        refused(hvd.broadcast_, x, first)
        refused(hvd.alltoall, torch.ones(n))
        refused(hvd.reducescatter, x)
        refused(hvd.grouped_reducescatter, [x, x[:1]])
        refused(hvd.sparse_allreduce_async, rows, "rows", hvd.Sum)
        refused(hvd.broadcast_object, 1)
        refused(hvd.allgather_object, 1)
        refused(hvd.add_process_set, [first])
        hvd.barrier()
        same(
            hvd.synchronize(under_way), sum(numbers(each) for each in range(n) if each != first) / n
        )
        same(hvd.allreduce(x, op=hvd.Product), 0.0)
    else:
        hvd.allreduce(torch.ones([]), op=hvd.Sum)
    assert hvd.join() != first

# Others join before, and after, an operation that was refused: it fails where it has begun.
for late in (1, 2):
    time.sleep(0.3 * (r > 0) + 0.3 * (r == late))
    if r == 1 or (r == 2 and late == 1):
        refused(hvd.allgather, numbers(r))
    if r == 1:
        same(hvd.allreduce(numbers(r), op=hvd.Sum), numbers(r))
    hvd.join()

# Those that go on disagree, or are alone in a set.
sets = [hvd.add_process_set([each]) for each in range(n)]
pair = hvd.add_process_set([0, 1]) if n > 2 else sets[0]
if r != n - 1:
    same(hvd.allreduce(numbers(r), process_set=sets[r]), numbers(r))
    if n > 2:
        same(hvd.allreduce(numbers(r), process_set=pair), numbers(0.5))
        try:
            hvd.allreduce(torch.ones(2 + r))
        except hvd.Disagreement as error:
            assert "[2]" in str(error) and "[3]" in str(error), error
    same(hvd.allreduce(numbers(r), op=hvd.Sum), sum(numbers(each) for each in range(n - 1)))
hvd.join()

# An optimizer goes on with gradients of zero from those that have none.
batches = torch.randn(2 * n, 3, 4, generator=torch.Generator().manual_seed(1))


def steps(rank):
    return 2 * (rank + 1)


def model():
    torch.manual_seed(1)
    return torch.nn.Sequential(
        torch.nn.Linear(4, 3), torch.nn.Tanh(), torch.nn.Linear(3, 1, dtype=torch.float32)
    )


def loss_of(made, rank, step):
    return (made(batches[step]) * (rank + 1)).square().mean()


OPTIONS: list[dict[str, Any]] = [
    {},
    {"compression": hvd.Compression.fp16},
    {"num_groups": 2, "gradient_predivide_factor": 2.0},
    {"backward_passes_per_step": 2, "op": hvd.Sum},
]
for settings in OPTIONS:
    mine, alone = model(), model()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(mine.parameters(), lr=0.1), mine.named_parameters(), **settings
    )
    passes, divided = settings.get("backward_passes_per_step", 1), 1 if "op" in settings else n
    for step in range(0, steps(r), passes):
        optimizer.zero_grad()
        for each in range(passes):
            loss_of(mine, r, step + each).backward()
        optimizer.step()
    assert hvd.join() == n - 1
    plain = torch.optim.SGD(alone.parameters(), lr=0.1)
    for step in range(0, steps(r), passes):
        plain.zero_grad()
        for rank in range(n):
            for each in range(passes if step < steps(rank) else 0):
                (loss_of(alone, rank, step + each) / divided).backward()
        plain.step()
    for found, expected in zip(mine.parameters(), alone.parameters(), strict=True):
        np.testing.assert_allclose(found.detach(), expected.detach(), rtol=1e-2, atol=1e-3)
hvd.shutdown()
hvd.init()
same(hvd.allreduce(numbers(r), op=hvd.Sum), sum(numbers(each) for each in range(n)))
assert hvd.join() in range(n)
print("OK", flush=True)

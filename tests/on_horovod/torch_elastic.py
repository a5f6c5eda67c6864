# SPDX-License-Identifier: Apache-2.0
"""Train by hvd.elastic while processes are killed: `torch_elastic.py FOLDER RANK:STEP...`.

The process to which the launcher has given a RANK kills itself in this STEP, once. Each one saves what it
has trained.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch

STEPS, ROWS = 12, 6


def rows() -> tuple[torch.Tensor, torch.Tensor]:
    """The inputs and the labels of all steps."""
    generator = torch.Generator().manual_seed(7)
    count = STEPS * ROWS
    return torch.randn(count, 5, generator=generator), torch.randn(count, 1, generator=generator)


def rows_of(step: int, rank: int, size: int) -> Iterable[int]:
    return range(step * ROWS + rank, (step + 1) * ROWS, size)


def model(weight: float = 0.5) -> torch.nn.Linear:
    made = torch.nn.Linear(5, 1)
    torch.nn.init.constant_(made.weight, weight)
    torch.nn.init.zeros_(made.bias)
    return made


def optimizer_of(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def loss_of(model: Any, inputs: torch.Tensor, labels: torch.Tensor, which: Iterable[int]) -> Any:
    return torch.nn.functional.mse_loss(model(inputs[which]), labels[which])


def main(folder: Path, deaths: list[str]) -> None:
    import rdmatensor.horovod.torch as hvd

    hvd.init()
    me = os.environ["RANK"]
    inputs, labels = rows()
    # Only the first process of rank 0 has the weights that count.
    begun = folder / f"{me} has begun"
    first = me == "0" and not begun.exists()
    begun.touch()
    trained = model(0.5 if first else -3.0)
    optimizer = hvd.DistributedOptimizer(
        optimizer_of(trained), named_parameters=trained.named_parameters()
    )

    def dies(step: int) -> bool:
        mark = folder / f"{me}:{step} is dead"
        if f"{me}:{step}" not in deaths or mark.exists():
            return False
        mark.touch()
        return True

    @hvd.elastic.run
    def train(state: Any) -> None:
        while state.step < STEPS:
            state.optimizer.zero_grad()
            share = rows_of(state.step, hvd.rank(), hvd.size())
            loss_of(state.model, inputs, labels, share).backward()  # gradients are on their way
            if dies(state.step):
                os.kill(os.getpid(), signal.SIGKILL)
            state.optimizer.step()
            state.step += 1
            state.commit()

    train(hvd.elastic.TorchState(model=trained, optimizer=optimizer, step=0))
    np.savez(folder / f"{me}.npz", **{k: v.numpy() for k, v in trained.state_dict().items()})


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])

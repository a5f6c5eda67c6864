# SPDX-License-Identifier: Apache-2.0
"""Horovod's example for PyTorch, on made-up data. With "die" as second argument, rank 1 is killed."""

import os
import signal
import sys

import numpy as np
import torch
from torch.nn.functional import cross_entropy

import rdmatensor.horovod.torch as hvd

# Horovod: initialize library.
hvd.init()
torch.manual_seed(1 + hvd.rank())
numbers = np.random.default_rng(1)
rows = torch.from_numpy(numbers.random((64, 6), np.float32))
labels = torch.from_numpy(numbers.integers(0, 3, 64))
batch = 16 // hvd.size()
mine = np.arange(64).reshape(-1, hvd.size(), batch)[:, hvd.rank()].ravel()
dataset = torch.utils.data.TensorDataset(rows[mine], labels[mine])
loader = torch.utils.data.DataLoader(dataset, batch_size=batch)

model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)

# Horovod: broadcast parameters & optimizer state.
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
hvd.broadcast_optimizer_state(optimizer, root_rank=0)

# Horovod: wrap optimizer with DistributedOptimizer.
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
dies = sys.argv[2:] == ["die"]
try:
    for epoch in range(1000 if dies else 3):
        for number, (data, target) in enumerate(loader):
            if dies and hvd.rank() == 1 and (epoch, number) == (1, 2):
                os.kill(os.getpid(), signal.SIGKILL)
            optimizer.zero_grad()
            loss = cross_entropy(model(data), target)
            loss.backward()
            optimizer.step()
except hvd.HorovodInternalError as error:
    assert "1" in str(error), error
    try:
        hvd.allreduce(torch.ones(2))
    except hvd.HorovodInternalError as again:
        print(f"lost: {again}", flush=True)
    sys.exit(0)
values = np.concatenate([each.detach().numpy().ravel() for each in model.parameters()])
np.savez(f"{sys.argv[1]}/{hvd.size()}_{hvd.rank()}.npz", values=values)

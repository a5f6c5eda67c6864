# SPDX-License-Identifier: Apache-2.0
"""A program for Horovod with PyTorch, of which only the import line has changed.

    rdmatensor launch -np 2 examples/horovod_torch.py

Each process trains on rows of its own, and the processes average their gradients.
"""

from __future__ import annotations

import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

import rdmatensor.horovod.torch as hvd  # before: import horovod.torch as hvd

hvd.init()
if torch.cuda.is_available():
    torch.cuda.set_device(hvd.local_rank())
device = "cuda" if torch.cuda.is_available() else "cpu"

torch.manual_seed(1)
labels = torch.randint(10, (4096,))
pictures = torch.randn(10, 64)[labels] * 2 + torch.randn(4096, 64)
dataset = TensorDataset(pictures, labels)
sampler: DistributedSampler[tuple[torch.Tensor, ...]] = DistributedSampler(
    dataset, num_replicas=hvd.size(), rank=hvd.rank()
)
loader = DataLoader(dataset, batch_size=32, sampler=sampler)

model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
model.to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3 * hvd.size())
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
hvd.broadcast_optimizer_state(optimizer, root_rank=0)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())

for epoch in range(4):
    sampler.set_epoch(epoch)
    right = 0.0
    for x, y in loader:
        optimizer.zero_grad()
        scores = model(x.to(device))
        cross_entropy(scores, y.to(device)).backward()
        optimizer.step()
        right += float((scores.argmax(1).cpu() == y).float().mean()) / len(loader)
accuracy = hvd.allreduce(torch.tensor(right), name="accuracy")
if hvd.rank() == 0:
    print(f"{hvd.size()} processes, accuracy {accuracy.item():.3f}", flush=True)

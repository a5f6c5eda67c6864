# SPDX-License-Identifier: Apache-2.0
"""What Horovod's DistributedOptimizer does in two processes. Prints OK at the end."""

import warnings

import numpy as np
import torch

import rdmatensor.horovod.torch as hvd
from rdmatensor import Unsupported

hvd.init()
r = hvd.rank()


def raises(kind, act, *words):
    try:
        act()
    except kind as error:
        assert all(word in str(error) for word in words), error
    else:
        raise AssertionError(f"no {kind}")


def made(count=1, rate=1.0, **options):
    weights = [torch.nn.Parameter(torch.zeros(2)) for _ in range(count)]
    return weights, hvd.DistributedOptimizer(torch.optim.SGD(weights, lr=rate), **options)


def stepped(passes=1, **options):
    """What SGD(1) has added up of gradients rank + 1, step by step."""
    (weight,), optimizer = made(backward_passes_per_step=passes, **options)
    found = []
    for _ in range(3):
        for _ in range(passes):
            (weight.sum() * (r + 1.0)).backward()
        optimizer.step()
        optimizer.zero_grad()
        found.append(-weight[0].item())
    return found


assert stepped() == [1.5, 3.0, 4.5]
assert stepped(op=hvd.Sum) == [3.0, 6.0, 9.0]
assert stepped(gradient_predivide_factor=2.0) == [1.5, 3.0, 4.5]
assert stepped(passes=2) == [3.0, 6.0, 9.0]
assert stepped(compression=hvd.Compression.fp16) == [1.5, 3.0, 4.5]
assert stepped(num_groups=1) == [1.5, 3.0, 4.5]
only = hvd.add_process_set([0])
assert stepped(process_set=only) == [(r + 1) * each for each in (1.0, 2.0, 3.0)]

# Gradients come in another order in each process, or are missing in one.
torch.manual_seed(r)
weights, optimizer = made(6, groups=2)
assert isinstance(optimizer, torch.optim.SGD)
for _ in range(3):
    order = torch.randperm(6).tolist()
    for i in order:
        if i != r:
            (weights[i].sum() * (r + 1.0) * 2**i).backward()
    optimizer.step()
    optimizer.zero_grad()
expected = [-3 * 2**i * ({0: 1.0, 1: 0.5}.get(i, 1.5)) for i in range(6)]
np.testing.assert_allclose([each[0].item() for each in weights], expected)

# Clipping between synchronize() and step(), and what is wrong around them.
(weight,), optimizer = made()
(weight.sum() * (r + 1.0)).backward()
raises(AssertionError, optimizer.zero_grad, "step()")
optimizer.synchronize()
assert weight.grad[0].item() == 1.5
weight.grad.mul_(2)
with optimizer.skip_synchronize():
    optimizer.step()
assert weight[0].item() == -3.0
optimizer.zero_grad()
(weight.sum() * 1.0).backward()
raises(AssertionError, lambda: (weight.sum() * 1.0).backward(), "backward_passes_per_step")
optimizer.step()
optimizer.synchronize()
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    optimizer.step()
assert "skip_synchronize()" in str(said[0].message)

# A closure's gradients are combined; a scheduler that had the optimizer before goes on.
weight = torch.nn.Parameter(torch.zeros(2))
plain = torch.optim.SGD([weight], lr=1.0)
scheduler = torch.optim.lr_scheduler.StepLR(plain, step_size=1, gamma=0.5)
optimizer = hvd.DistributedOptimizer(plain)


def closure():
    optimizer.zero_grad()
    loss = weight.sum() * (r + 1.0)
    loss.backward()
    return loss


for _ in range(2):
    optimizer.step(closure)
    scheduler.step()
assert weight[0].item() == -1.5 * 1.5

# Parameters that are thawed or added later travel, too. A newer optimizer takes parameters over.
weights, optimizer = made(2)
weights[1].requires_grad_(False)
weights, late = weights[:1], weights[1]
frozen = torch.nn.Parameter(torch.zeros(2), requires_grad=False)
optimizer = hvd.DistributedOptimizer(torch.optim.SGD([*weights, frozen], lr=1.0))
frozen.requires_grad_()
late.requires_grad_()
optimizer.add_param_group({"params": [late]})
for _ in range(2):
    ((weights[0] + frozen + late).sum() * (r + 1.0)).backward()
    optimizer.step()
    optimizer.zero_grad()
assert [each[0].item() for each in (weights[0], frozen, late)] == [-3.0] * 3
newer = hvd.DistributedOptimizer(torch.optim.SGD(weights, lr=1.0))
raises(ValueError, optimizer.step, "newer")

# Rows of embeddings are gathered, or added up as dense gradients.
for dense in (False, True):
    table = torch.nn.Embedding(4, 2, sparse=True)
    table.weight.data.zero_()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(table.parameters(), lr=1.0), sparse_as_dense=dense
    )
    for _ in range(2):
        table(torch.tensor([r, 3])).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    np.testing.assert_allclose(table.weight.detach()[:, 0].numpy(), [-1.0, -1.0, 0.0, -2.0])

# Everybody gets rank 1's weights, state and options; it has trained, and the other has no state yet.
torch.manual_seed(r)
model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
optimizer = torch.optim.Adam(model.parameters(), lr=0.1 * (r + 1))
if r:
    model(torch.randn(4, 3)).square().sum().backward()
    optimizer.step()
hvd.broadcast_parameters(model.state_dict(), root_rank=1)
hvd.broadcast_parameters(model.named_parameters(), root_rank=1)
hvd.broadcast_optimizer_state(optimizer, root_rank=1)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
hvd.broadcast_optimizer_state(optimizer, root_rank=1)
assert optimizer.param_groups[0]["lr"] == 0.2
for _ in range(2):
    state = optimizer.state_dict()["state"]
    assert sorted(state) == [0, 1, 2, 3]
    values = [value for each in state.values() for value in each.values()]
    for value in [*values, *model.state_dict().values()]:
        assert torch.equal(hvd.broadcast(value, 0), value)
    optimizer.zero_grad()
    model(torch.randn(4, 3)).square().sum().backward()
    optimizer.step()
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)  # running statistics differ

# Other models are an error in both processes, not a sum.
(weight, other), optimizer = made(2, named_parameters=None)
named = {f"a{r}": weight, "b": other}
optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight, other], 1.0), named.items())
(weight + other).sum().backward()
raises(hvd.HorovodInternalError, optimizer.step, "a0", "a1")

sgd = torch.optim.SGD([weight, other], 1.0)
wrap = hvd.DistributedOptimizer
raises(ValueError, lambda: wrap(sgd, [("a", weight)]), "no name")
raises(ValueError, lambda: wrap(sgd, [("a", weight), ("a", other)]), "several")
raises(ValueError, lambda: wrap(sgd, [weight, other]), "pairs")
raises(ValueError, lambda: wrap(sgd, backward_passes_per_step=0), "1 or more")
raises(ValueError, lambda: wrap(sgd, op=hvd.Sum, gradient_predivide_factor=2.0), "Average")
raises(ValueError, lambda: wrap(sgd, groups=[[weight], [weight]]), "twice")
raises(ValueError, lambda: wrap(wrap(sgd)), "already")
raises(Unsupported, lambda: wrap(sgd, op=hvd.Adasum), "op=Average")
print("OK", flush=True)

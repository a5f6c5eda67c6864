# SPDX-License-Identifier: Apache-2.0
"""Horovod's operations on torch's tensors in two processes, against numpy. Prints OK at the end."""

import json
import sys
from pathlib import Path

import numpy as np
import torch

import rdmatensor.horovod
import rdmatensor.horovod.torch as hvd
from rdmatensor import Unsupported

hvd.init()
hvd.init()
assert "tensorflow" not in sys.modules
r, n = hvd.rank(), hvd.size()
assert (n, hvd.local_rank(), hvd.local_size()) == (2, r, 2)
assert (hvd.cross_rank(), hvd.cross_size()) == (0, 1)
assert hvd.is_homogeneous() and hvd.is_initialized() and not hvd.mpi_built()


def same(found, expected):
    found = found.detach().float().numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-2 if found.size == 0 else 1e-3)
    assert found.shape == np.shape(expected)


def raises(kind, act, *words):
    try:
        act()
    except kind as error:
        assert all(word in str(error) for word in words), error
    else:
        raise AssertionError(f"no {kind}")


one = np.array([1.0, 2.0, 4.0])
x = torch.tensor([1.0, 2.0, 4.0]) * (r + 1)
integers = torch.tensor([3, -4]) + r
ragged = torch.full((2 * r + 1, 2), float(r))
strided = torch.stack([x, x * 0], 1)[:, 0]
wait = hvd.synchronize
CASES = [
    (hvd.allreduce(x), 1.5 * one),
    (hvd.allreduce(x, average=False), 3 * one),
    (hvd.allreduce(x, op=hvd.Min), one),
    (hvd.allreduce(x, op=hvd.Max), 2 * one),
    (hvd.allreduce(x, op=hvd.Product), 2 * one**2),
    (hvd.allreduce(integers), [3, -3]),
    (hvd.allreduce(integers, op=hvd.Sum, prescale_factor=0.5), [3, -3]),
    (hvd.allreduce(x, op=hvd.Sum, prescale_factor=2.0, postscale_factor=0.25), 1.5 * one),
    (hvd.allreduce(x, prescale_factor=0.5, postscale_factor=2.0), 1.5 * one),
    (hvd.allreduce(x, compression=hvd.Compression.fp16), 1.5 * one),
    (hvd.allreduce(strided), 1.5 * one),
    (hvd.allreduce_(strided.clone(), op=hvd.Sum), 3 * one),
    (hvd.allreduce(x[0]), 1.5),
    (hvd.allreduce(x[:0]), one[:0]),
    (hvd.allreduce(x.bfloat16()), 1.5 * one),
    (hvd.allreduce(x.half(), op=hvd.Sum), 3 * one),
    (wait(hvd.allreduce_async(x)), 1.5 * one),
    (hvd.allgather(ragged), [[0, 0], [1, 1], [1, 1], [1, 1]]),
    (hvd.allgather(ragged[: 1 - r]), [[0, 0]]),
    (hvd.allgather(ragged[:0]), np.zeros((0, 2))),
    (hvd.allgather(torch.tensor([r == 1])), [0, 1]),
    (wait(hvd.allgather_async(x.bfloat16())), [*one, *(2 * one)]),
    (hvd.broadcast(x, 1), 2 * one),
    (hvd.broadcast(x[0], 0), 1.0),
    (hvd.broadcast_(x.clone(), 1), 2 * one),
    (wait(hvd.broadcast_async(x, 0)), one),
    (hvd.alltoall(torch.arange(4) + 10 * r), [[0, 1, 10, 11], [2, 3, 12, 13]][r]),
    (hvd.reducescatter(torch.arange(5.0) + r), [[0.5, 1.5, 2.5], [3.5, 4.5]][r]),
    (hvd.reducescatter(torch.arange(4.0), op=hvd.Sum), [[0, 2], [4, 6]][r]),
    (hvd.reducescatter(x[:1]), [[1.5], []][r]),
    (wait(hvd.reducescatter_async(integers + r, op=hvd.Average)), [[4], [-3]][r]),
]
for found, expected in CASES:
    same(found, expected)
for dtype in (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float64):
    result = hvd.allreduce(torch.tensor([1, 6], dtype=dtype) + r)
    assert result.dtype is dtype
    same(result, [1 + 0.5 * (dtype is torch.float64), 6 + 0.5 * (dtype is torch.float64)])
got, counts = hvd.alltoall(torch.arange(4) + 10 * r, splits=[1 + r, 2])
same(got, [[0, 10, 11], [1, 2, 12, 13]][r]), same(counts, [[1, 2], [2, 2]][r])
assert counts.dtype is torch.int32
a, b, c = hvd.grouped_allreduce([x, integers, x[:1]], op=hvd.Sum)
same(a, 3 * one), same(b, [7, -7]), same(c, [3.0])
pair = [x.clone(), strided.clone()]
assert hvd.grouped_allreduce_(pair)[0] is pair[0]
same(pair[0], 1.5 * one), same(pair[1], 1.5 * one)
a, b = hvd.grouped_allgather([ragged, x])
same(a, [[0, 0], [1, 1], [1, 1], [1, 1]]), same(b, [*one, *(2 * one)])
a, b = hvd.grouped_reducescatter([torch.arange(4.0), torch.arange(2.0)])
same(a, [[0, 1], [2, 3]][r]), same(b, [[0.0], [1.0]][r])
rows = torch.full((2, 2), r + 1.0)
rows = torch.sparse_coo_tensor([[0, 2 * r]], rows, (3, 2), check_invariants=True)
same(hvd.sparse_allreduce_async(rows, "rows", hvd.Average)().to_dense(), [[2, 2], [0, 0], [1, 1]])
handle = hvd.allreduce_async(x)
hvd.barrier()
while not hvd.poll(handle):
    pass
same(wait(handle), 1.5 * one), same(wait(handle), 1.5 * one)

GRADIENTS = {  # of the sum of results times (rank + 1), as Horovod defines them
    "average": (lambda v: hvd.allreduce(v), [1.5] * 4),
    "sum": (lambda v: hvd.allreduce(v, op=hvd.Sum), [3.0] * 4),
    "half": (lambda v: hvd.allreduce(v, compression=hvd.Compression.fp16), [1.5] * 4),
    "group": (lambda v: sum(hvd.grouped_allreduce([v, v], op=hvd.Sum)), [6.0] * 4),
    "mixed": (lambda v: hvd.grouped_allreduce([v, integers], op=hvd.Sum)[0], [3.0] * 4),
    "gather": (lambda v: hvd.allgather(v[: r + 2]), [[1.5, 1.5, 0, 0], [1.5, 1.5, 1.5, 0]][r]),
    "broadcast": (lambda v: hvd.broadcast(v, 1), [[0.0] * 4, [1.5] * 4][r]),
    "alltoall": (lambda v: hvd.alltoall(v, splits=[1, 2])[0], [1.0, 2.0, 2.0, 0.0]),
    "scatter": (lambda v: hvd.reducescatter(v, op=hvd.Sum), [2.0, 2.0, 4.0, 4.0]),
    "mean scatter": (lambda v: hvd.reducescatter(v), [1.0, 1.0, 2.0, 2.0]),
}
for name, (act, expected) in GRADIENTS.items():
    value = torch.ones(4, requires_grad=True)
    (act(value).sum() * (r + 1)).backward()
    np.testing.assert_allclose(value.grad.numpy(), expected, err_msg=name)

# Batches of all processes, of different sizes, are normalized as one.
batch = torch.randn(7, 3, 2, generator=torch.Generator().manual_seed(1))
layer, plain = hvd.SyncBatchNorm(3), torch.nn.BatchNorm1d(3)
mine = batch[3:] if r else batch[:3]
mine.requires_grad_()
whole = batch.detach().requires_grad_()
weights = torch.arange(42.0).view(7, 3, 2)
out = layer(mine)
expected = plain(whole)
(out * (weights[3:] if r else weights[:3])).sum().backward()
(expected * weights).sum().backward()
part = slice(3, None) if r else slice(3)
for found, wanted in [
    (out, expected[part]),
    (mine.grad, whole.grad[part]),
    (layer.running_var, plain.running_var),
]:
    np.testing.assert_allclose(found.detach().numpy(), wanted.detach().numpy(), atol=1e-4)

# Objects and sets.
assert hvd.broadcast_object({"rank": r}, 1) == {"rank": 1}
assert hvd.allgather_object("x" * r) == ["", "x"]
alone = [hvd.add_process_set([0]), hvd.add_process_set(hvd.ProcessSet([1]))]
assert [each.rank() for each in alone] == [[0, None], [None, 0]][r]
same(hvd.allreduce(x, process_set=alone[r]), x.numpy())
same(hvd.broadcast(x, r, process_set=alone[r]), x.numpy())
raises(ValueError, lambda: hvd.broadcast(x, 1 - r, process_set=alone[r]), "root_rank")
raises(ValueError, lambda: hvd.allreduce(x, process_set=alone[1 - r]), "is not in")
raises(ValueError, lambda: hvd.add_process_set([1]), "already")
raises(ValueError, lambda: hvd.allreduce(x, process_set=hvd.ProcessSet([0])), "add_process_set")
assert hvd.remove_process_set(alone[0]) and hvd.remove_process_set(alone[1])
assert not hvd.remove_process_set(alone[0])

# What does not fit is an error in all processes, and the next operation works.
wrong = hvd.Disagreement
assert issubclass(wrong, hvd.HorovodInternalError)
raises(wrong, lambda: hvd.allreduce(x, name=f"name {r}"), "name 0", "name 1")
raises(wrong, lambda: hvd.allreduce(torch.ones(2 + r)), "[2]", "[3]")
raises(wrong, lambda: hvd.allreduce(torch.ones([[6], [2, 3]][r])), "[6]", "[2, 3]")
raises(wrong, lambda: hvd.allreduce(torch.ones(2, dtype=[torch.float32, torch.int32][r])), "int32")
raises(wrong, lambda: hvd.allreduce(x, op=[hvd.Min, hvd.Max][r]), "min", "max")
op = [hvd.Sum, hvd.Average][r]
raises(wrong, lambda: hvd.sparse_allreduce_async(rows, "rows", op)(), "sum", "average")
raises(wrong, lambda: hvd.reducescatter(x[:1], op=op), "sum", "average")
raises(wrong, lambda: hvd.allgather(torch.ones(2, 2 + r)), "[any, 2]", "[any, 3]")
raises(wrong, lambda: hvd.broadcast(torch.ones(2 + r), 0), "[2]", "[3]")
raises(wrong, lambda: hvd.broadcast(x, r), "rank 0", "rank 1")
raises(wrong, lambda: hvd.broadcast(x, 0) if r else hvd.allreduce(x), "broadcast")
raises(wrong, lambda: hvd.grouped_reducescatter([torch.ones(2 + r)]), "[2]", "[3]")
raises(wrong, lambda: hvd.broadcast_parameters({f"weight {r}": x}, 0), "weight 0", "weight 1")
raises(ValueError, lambda: hvd.allgather(torch.tensor(1.0)), "scalar")
raises(ValueError, lambda: hvd.reducescatter(torch.tensor(1.0)), "scalar")
raises(ValueError, lambda: hvd.alltoall(x, splits=[[1, 1], [9, 0]][r]), "splits [9, 0]")
raises(ValueError, lambda: hvd.alltoall(x), "splits")
raises(ValueError, lambda: hvd.alltoall(x, splits=torch.ones(2)), "integers")
raises(ValueError, lambda: hvd.allreduce(x > 0), "uint8")
raises(ValueError, lambda: hvd.allreduce(x, average=True, op=hvd.Sum), "not both")
raises(ValueError, lambda: hvd.sparse_allreduce_async(rows, "rows", hvd.Max), "to_dense")
raises(ValueError, lambda: hvd.broadcast_parameters({"a": 1}, 0), "broadcast_object")
raises(Unsupported, lambda: hvd.allreduce(x, op=hvd.Adasum), "op=Average")
raises(Unsupported, lambda: rdmatensor.horovod.run, "rdmatensor launch")
same(hvd.allreduce(x), 1.5 * one)

hvd.start_timeline(f"{sys.argv[1]}/{r}.json")
hvd.allreduce(x)
hvd.stop_timeline()
trace = json.loads(Path(f"{sys.argv[1]}/{r}.json").read_text())
assert "rdmatensor:all_reduce" in str(trace)

hvd.shutdown()
assert not hvd.is_initialized()
raises(ValueError, hvd.rank, "init()")
# A set that is there twice is an error, and none of them is there then.
for _ in range(2):
    twice = [hvd.ProcessSet([0]), hvd.ProcessSet([1]), hvd.ProcessSet([0])]
    raises(ValueError, lambda sets=twice: hvd.init(process_sets=sets), "already")
alone = [hvd.ProcessSet([0]), hvd.ProcessSet([1])]
hvd.init(process_sets=alone)
same(hvd.allreduce(x, process_set=alone[r]), x.numpy())
same(hvd.allreduce(x), 1.5 * one)
hvd.shutdown()
# A process group that the program has made is used, and stays.
torch.distributed.init_process_group(
    "gloo", init_method=f"file://{sys.argv[1]}/store", rank=r, world_size=n
)
hvd.init(process_sets=[hvd.ProcessSet([1])])
same(hvd.allreduce(x), 1.5 * one)
hvd.shutdown()
assert torch.distributed.is_initialized()
torch.distributed.barrier()
print("OK", flush=True)

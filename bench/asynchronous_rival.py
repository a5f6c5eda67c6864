# SPDX-License-Identifier: Apache-2.0
"""A process of bench_asynchronous.py that trains the same network on the same data with torch or hivemind.

It needs no package of rdmatensor.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import post_localSGD_hook as local_sgd
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.optim import PostLocalSGDOptimizer
from torch.nn.parallel import DistributedDataParallel

from asynchronous_model import BATCH, Network, train
from member import serve

PATIENCE = 100.0
PERIOD = 4


class Model(torch.nn.Module):
    """The network, with the weights that the others begin with."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        first, second = (torch.nn.Parameter(torch.tensor(each)) for each in network.layers())
        self.first, self.second = first, second

    def forward(self, x: Any) -> Any:
        return torch.relu(x @ self.first) @ self.second


class Together:
    """Ends training in all processes after the same step, which is one in which they meet anyway."""

    def __init__(self, period: int) -> None:
        self._period = period

    def over(self, steps: int, done: bool) -> bool:
        if steps % self._period:
            return False
        count = torch.tensor([float(done)])
        dist.all_reduce(count)
        return int(count) == dist.get_world_size()

    def close(self) -> None:
        pass


class Apart:
    """Ends training when all are done, for which nobody waits."""

    def __init__(self, closing: Callable[[], None]) -> None:
        self.close = closing
        self._sum: Any = None

    def over(self, steps: int, done: bool) -> bool:
        if done and self._sum is None:
            self._sum = dist.all_reduce(torch.ones(1), async_op=True)
        return self._sum is not None and bool(self._sum.is_completed())


Way = tuple[Any, Any, Together | Apart]


def ddp(model: Model, rate: float) -> Way:
    """All gradients are averaged in each step."""
    parallel = DistributedDataParallel(model)
    return parallel, torch.optim.SGD(model.parameters(), rate), Together(10)


def post_local_sgd(model: Model, rate: float) -> Way:
    """Models are averaged in every fourth step, from the first one on."""
    parallel = DistributedDataParallel(model)
    state = local_sgd.PostLocalSGDState(
        process_group=None,
        subgroup=None,
        start_localSGD_iter=0,
        post_local_gradient_allreduce=False,
    )
    parallel.register_comm_hook(state, local_sgd.post_localSGD_hook)
    optimizer = PostLocalSGDOptimizer(
        torch.optim.SGD(model.parameters(), rate), PeriodicModelAverager(PERIOD, warmup_steps=0)
    )
    return parallel, optimizer, Together(3 * PERIOD)


def with_hivemind(model: Model, rate: float) -> Way:
    """Each process makes steps of its own. When all have made about 25 each, whoever is there averages."""
    import hivemind

    first: list[Any] = [None]
    if dist.get_rank() == 0:
        dht = hivemind.DHT(host_maddrs=[HOST], start=True)
        first = [[[str(each) for each in dht.get_visible_maddrs()], os.urandom(4).hex()]]
    dist.broadcast_object_list(first)
    peers, name = first[0]
    if dist.get_rank() > 0:
        dht = hivemind.DHT(host_maddrs=[HOST], initial_peers=peers, start=True)
    optimizer = hivemind.Optimizer(
        dht=dht,
        run_id=name,
        params=model.parameters(),
        optimizer=lambda each: torch.optim.SGD(each, rate),
        batch_size_per_step=BATCH,
        target_batch_size=25 * BATCH * dist.get_world_size(),
        use_local_updates=True,
        matchmaking_time=0.3,
        averaging_timeout=5.0,
        tracker_opts={"min_refresh_period": 0.1, "default_refresh_period": 0.2},
    )

    def close() -> None:
        print(f"hivemind has averaged {optimizer.local_epoch} times", file=sys.stderr)
        dist.barrier()
        optimizer.shutdown()
        dht.shutdown()

    return model, optimizer, Apart(close)


HOST = "/ip4/127.0.0.1/tcp/0"
WAYS: dict[str, Callable[[Model, float], Way]] = {
    "torch DDP, gloo": ddp,
    "torch PostLocalSGDOptimizer, gloo": post_local_sgd,
    "hivemind": with_hivemind,
}


class Trained:
    """A model in one of the ways."""

    def __init__(self, way: str, network: Network, rate: float) -> None:
        self.x, self.y = (torch.tensor(each) for each in network.train)
        self.test = tuple(torch.tensor(each) for each in network.test)
        self.model, self.steps = Model(network), 0
        self.parallel, self.optimizer, self.end = WAYS[way](self.model, rate)
        dist.barrier()

    def gradient(self, rows: Any) -> None:
        rows = torch.tensor(rows)
        self.loss = torch.nn.CrossEntropyLoss()(self.parallel(self.x[rows]), self.y[rows])

    def accuracy(self) -> float:
        with torch.no_grad():
            return float((self.model(self.test[0]).argmax(1) == self.test[1]).float().mean())

    def update(self, done: bool) -> bool:
        self.optimizer.zero_grad()
        self.loss.backward()
        self.optimizer.step()
        self.steps += 1
        return self.end.over(self.steps, done)

    def close(self) -> None:
        self.end.close()


def main() -> None:
    torch.set_num_threads(1)
    rank = int(os.environ["RANK"])
    dist.init_process_group(
        "gloo",
        init_method=f"tcp://127.0.0.1:{os.environ['MASTER_PORT']}",
        rank=rank,
        world_size=int(os.environ["WORLD_SIZE"]),
        timeout=timedelta(seconds=PATIENCE),
    )

    def begin(way: str, seed: int, rate: float, pads: list[float], **order: float) -> float:
        network, numbers = Network(seed), np.random.default_rng([seed, rank])
        trained = Trained(way, network, rate)
        return train(trained, network, numbers, pad=pads[rank], **order)

    serve({"train": begin})


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: Apache-2.0
"""Lets heat spread over a plate that several processes share, which put their edges into each other's memory.

Start it by `torchrun --nproc-per-node 3 torch_window.py`, or by `rdmatensor launch -n 3 torch_window.py`.
"""

import torch
import torch.distributed as dist

import rdmatensor.torch

ROWS, COLUMNS, STEPS = 64, 256, 500


def spread(plate: torch.Tensor) -> None:
    """Take a step of a plate. Its edges stay as they are."""
    inner = plate[1:-1, 1:-1]
    around = plate[:-2, 1:-1] + plate[2:, 1:-1] + plate[1:-1, :-2] + plate[1:-1, 2:]
    inner += 0.2 * (around - 4 * inner)


def main() -> None:
    dist.init_process_group("rdmatensor")
    rank, size = dist.get_rank(), dist.get_world_size()
    whole = torch.rand(size * ROWS + 2, COLUMNS, generator=torch.Generator().manual_seed(0)) * 100
    # Our rows, and one more on each side, which belongs to a neighbour.
    mine = whole[rank * ROWS : (rank + 1) * ROWS + 2].clone()
    # Neighbours put their edges here: the upper one first, then the lower one. A neighbour may be one step
    # ahead of this process, but not two, because it needs this process's edge first. So each has two places,
    # which it uses in turns.
    edges = rdmatensor.torch.empty((2, 2, COLUMNS))
    window = dist.group.WORLD.new_window(edges)  # with torch 2.14: dist._new_window(edges)
    neighbours = {side: rank + (-1, 1)[side] for side in (0, 1) if 0 <= rank + (-1, 1)[side] < size}
    for step in range(STEPS):
        for side, neighbour in neighbours.items():
            # Our upper edge is below the neighbour's plate, and our lower one above it.
            place = 2 * (step % 2) + 1 - side
            window.put(mine[(1, -2)[side]], neighbour, place * COLUMNS)
        for side, neighbour in neighbours.items():
            window.wait_signal(neighbour)
            mine[(0, -1)[side]] = edges[step % 2, side]
        spread(mine)
    window.tensor_deregister()

    for _ in range(STEPS):
        spread(whole)
    same = torch.tensor(torch.equal(mine[1:-1], whole[rank * ROWS + 1 : (rank + 1) * ROWS + 1]))
    dist.all_reduce(same, dist.ReduceOp.MIN)
    if rank == 0:
        print(f"{size} processes, {STEPS} steps: the same bits as one process: {same.item()}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: Apache-2.0
"""Normalize batches by the rows of all processes."""

from __future__ import annotations

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from ...errors import UsageError
from ..reductions import Sum
from .gradients import allreduce
from .process import size


class SyncBatchNorm(_BatchNorm):  # type: ignore[misc]
    """Batch normalization by the mean and the variance of all processes' batches, of two dimensions or more.

    Arguments and state are those of torch.nn.BatchNorm2d. Batches may have different sizes, and be on the CPU
    or a CUDA device. All processes call it equally often while they train.
    """

    def _check_input_dim(self, input: torch.Tensor) -> None:  # noqa: A002
        if input.dim() < 2:
            raise UsageError(
                f"SyncBatchNorm: the input has the shape {list(input.shape)}: give a batch"
            )

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002
        """Return the normalized batch. Raises UsageError for one dimension, and what allreduce raises."""
        self._check_input_dim(input)
        by_batch = self.training or not self.track_running_stats
        if not by_batch or size() == 1:
            result: torch.Tensor = super().forward(input)
            return result
        wide = input.float() if input.dtype in (torch.float16, torch.bfloat16) else input
        dims = [each for each in range(input.dim()) if each != 1]
        shape = [1, -1] + [1] * (input.dim() - 2)
        own = wide.new_tensor([input.numel() // input.shape[1]])
        sums = allreduce(torch.cat([wide.sum(dims), own]), name="SyncBatchNorm, sums", op=Sum)
        count = sums[-1]
        mean = sums[:-1] / count
        centered = wide - mean.view(shape)
        squares = allreduce(centered.square().sum(dims), name="SyncBatchNorm, squares", op=Sum)
        variance = squares / count
        if self.training and self.track_running_stats:
            self._track(mean.detach(), variance.detach() * count / (count - 1).clamp(min=1))
        result = centered * torch.rsqrt(variance + self.eps).view(shape)
        if self.affine:
            result = result * self.weight.view(shape) + self.bias.view(shape)
        return result.to(input.dtype)

    def _track(self, mean: torch.Tensor, variance: torch.Tensor) -> None:
        """Move the running statistics toward those of a batch."""
        self.num_batches_tracked.add_(1)
        momentum = self.momentum
        if momentum is None:
            momentum = 1.0 / float(self.num_batches_tracked)
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), momentum)
        self.running_var.lerp_(variance.to(self.running_var.dtype), momentum)

# SPDX-License-Identifier: Apache-2.0
"""Say what Horovod could have been built with: programs ask before they use it."""

from __future__ import annotations

from typing import Any


def _no(name: str, does: str) -> Any:
    def answer(*_: Any, **__: Any) -> bool:
        return False

    answer.__name__ = answer.__qualname__ = name
    answer.__doc__ = f"Return False: {does}."
    return answer


mpi_built = _no("mpi_built", "tensors travel over rdmatensor, not over MPI")
mpi_enabled = _no("mpi_enabled", "tensors travel over rdmatensor, not over MPI")
mpi_threads_supported = _no("mpi_threads_supported", "there is no MPI")
gloo_built = _no("gloo_built", "tensors travel over rdmatensor, not over gloo")
gloo_enabled = _no("gloo_enabled", "tensors travel over rdmatensor, not over gloo")
nccl_built = _no("nccl_built", "tensors of GPUs travel through the host's memory")
ddl_built = _no("ddl_built", "there is no DDL")
ccl_built = _no("ccl_built", "there is no oneCCL")
cuda_built = _no("cuda_built", "operations act on the host's memory")
rocm_built = _no("rocm_built", "operations act on the host's memory")

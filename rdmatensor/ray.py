# SPDX-License-Identifier: Apache-2.0
"""Make the workers of Ray Train processes that train together: `rdmatensor.ray.RayConfig`."""

from __future__ import annotations

import contextlib
import os
import socket
from dataclasses import dataclass
from typing import Any

import ray
from ray.train.backend import Backend, BackendConfig

from . import config
from ._api.secret import new_secret, secret_file

__all__ = ["RayConfig"]

_kept = contextlib.ExitStack()  # the secret's file, as long as the worker runs


@dataclass
class RayConfig(BackendConfig):  # type: ignore[misc]  # Ray's classes have no types
    """Tell each worker its place, for rdmatensor.train.init() and init_process_group("rdmatensor").

        TensorflowTrainer(train, tensorflow_config=rdmatensor.ray.RayConfig(), scaling_config=...).fit()

    It is the backend_config of any of Ray's trainers. Ray's own for TensorFlow would make Keras that of
    version 2, which rdmatensor.train does not train.

    Sets RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT in the workers, as torchrun does. Gives
    them a secret for this run, unless the settings SECRET_FILE or INSECURE, here or in a worker, say how
    processes trust each other. If Ray starts all workers again after a failure, they get new ones.
    """

    @property
    def backend_cls(self) -> type[Backend]:
        """The class that Ray makes an object of."""
        return _Backend


class _Backend(Backend):  # type: ignore[misc]  # as above
    def on_start(self, worker_group: Any, backend_config: RayConfig) -> None:
        """Tell workers their places. Ray calls it once they run, before the function to train."""
        places = worker_group.execute(_where)
        hosts = [host for host, _ in places]
        secret = new_secret()
        told = []
        for rank, host in enumerate(hosts):
            variables = {
                "RANK": rank,
                "WORLD_SIZE": len(hosts),
                "LOCAL_RANK": hosts[:rank].count(host),
                "MASTER_ADDR": hosts[0],
                "MASTER_PORT": places[0][1],
            }
            told.append(worker_group.execute_single_async(rank, _take, variables, secret))
        ray.get(told)


def _where() -> tuple[str, int]:
    """Return the address of this worker's host, and a port that is free there."""
    host = ray.util.get_node_ip_address()
    with socket.create_server(
        (host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET
    ) as free:
        return host, free.getsockname()[1]


def _take(variables: dict[str, Any], secret: str) -> None:
    """Take this worker's place, and the secret unless its own settings have one."""
    os.environ.pop("TF_CONFIG", None)  # it would come first
    os.environ.update({name: str(value) for name, value in variables.items()})
    if secret and new_secret():
        config.set("SECRET_FILE", _kept.enter_context(secret_file(secret)))

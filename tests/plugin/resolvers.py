# SPDX-License-Identifier: Apache-2.0
"""Starts a server by each resolver, as docs/strategies.md says. Prints what they said, as JSON."""

from __future__ import annotations

import json
import os
from types import SimpleNamespace
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
import tensorflow as tf

import rdmatensor.errors
import rdmatensor.tensorflow
from support.ports import free_ports

of = tf.distribute.cluster_resolver


def tf_config(port: int) -> Any:
    """All by the environment."""
    os.environ["TF_CONFIG"] = _config(port, rpc_layer="grpc+rdma")
    return of.TFConfigClusterResolver()


def tf_config_argument(port: int) -> Any:
    """The protocol by an argument."""
    os.environ["TF_CONFIG"] = _config(port)
    return of.TFConfigClusterResolver(rpc_layer="grpc+rdma")


def _config(port: int, **more: str) -> str:
    task = {"type": "worker", "index": 0}
    return json.dumps({"cluster": {"worker": [f"127.0.0.1:{port}"]}, "task": task} | more)


def simple(port: int) -> Any:
    """A cluster from elsewhere."""
    cluster = tf.train.ClusterSpec({"worker": [f"127.0.0.1:{port}"]})
    return of.SimpleClusterResolver(cluster, task_type="worker", task_id=0, rpc_layer="grpc+rdma")


def slurm(port: int) -> Any:
    """What srun tells the second of three tasks on two nodes without GPUs; a parameter server and workers."""
    os.environ.update(
        SLURM_PROCID="1",
        SLURM_STEP_NUM_TASKS="3",
        SLURM_STEP_NODELIST="localhost,node[7]",
        SLURM_STEP_TASKS_PER_NODE="2,1",
    )
    return of.SlurmClusterResolver(
        jobs={"ps": 1, "worker": 2},
        port_base=port - 1,
        gpus_per_node=2,
        gpus_per_task=1,
        auto_set_gpu=False,
        rpc_layer="grpc+rdma",
    )


class KubernetesApi:
    """The one call that the resolver makes, with the answer for a pod that runs on this host."""

    def list_pod_for_all_namespaces(self, label_selector: str) -> Any:
        """Pods with this label."""
        assert label_selector == "job-name=train"
        pod = SimpleNamespace(
            metadata=SimpleNamespace(name="train-0"),
            status=SimpleNamespace(phase="Running", host_ip="127.0.0.1"),
        )
        return SimpleNamespace(items=[pod])


def kubernetes(port: int) -> Any:
    """It does not know which pod it runs in."""
    resolver = of.KubernetesClusterResolver(
        {"worker": ["job-name=train"]},
        tf_server_port=port,
        rpc_layer="grpc+rdma",
        override_client=KubernetesApi(),
    )
    resolver.task_type, resolver.task_id = "worker", 0
    return resolver


def main() -> None:
    """See the module."""
    rdmatensor.tensorflow.use(transport="shm", require=True)
    said: dict[str, Any] = {}
    for make in (tf_config, tf_config_argument, simple, slurm, kubernetes):
        (port,) = free_ports(1)
        resolver = make(port)
        cluster = resolver.cluster_spec()
        server = tf.distribute.Server(
            cluster, resolver.task_type, resolver.task_id, protocol=resolver.rpc_layer
        )
        said[make.__name__] = {
            "address": cluster.task_address(resolver.task_type, resolver.task_id),
            "port": port,
            "target": server.target,
            "task": [resolver.task_type, resolver.task_id],
            "servers": len(rdmatensor.tensorflow.stats()["servers"]),
        }
    try:
        rdmatensor.tensorflow.use(policy="auto")
    except rdmatensor.errors.UsageError as error:
        said["too_late"] = str(error)
    said["policy"] = rdmatensor.config.get("POLICY")
    print(json.dumps(said), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()

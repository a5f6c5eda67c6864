# SPDX-License-Identifier: Apache-2.0
"""A task that ends while its tensors are under way: exiting.py CLUSTER_JSON INDEX HOW.

Trades tensors with task 0 until a line comes on standard input; then it ends by HOW. Prints a line once the
first tensors went.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from typing import Any

import tensorflow as tf

v1 = tf.compat.v1
ELEMENTS = 1 << 20


def trade(target: str, me: str) -> None:
    """Steps for ever."""
    with tf.Graph().as_default():
        with tf.device("/job:worker/task:0"):
            there = tf.random.uniform([ELEMENTS])
        with tf.device(me):
            here = there + 1.0
        with tf.device("/job:worker/task:0"):
            back = here * 2.0
        with tf.device(me):
            total = tf.reduce_sum(back)
        with v1.Session(target) as session:
            session.run(total)
            print(json.dumps("trading"), flush=True)
            while True:
                session.run(total)


def main() -> Any:
    """See the module."""
    cluster, index, how = sys.argv[1:]
    server = tf.distribute.Server(
        tf.train.ClusterSpec(json.loads(cluster)),
        job_name="worker",
        task_index=int(index),
        protocol="grpc+rdma",
    )
    me = f"/job:worker/task:{index}"
    for _ in range(2):
        threading.Thread(target=trade, args=(server.target, me), daemon=True).start()
    sys.stdin.readline()
    if how == "raise":
        raise RuntimeError("the program has a fault")
    if how == "_exit":
        os._exit(3)
    if how == "signal":
        time.sleep(600)


if __name__ == "__main__":
    main()

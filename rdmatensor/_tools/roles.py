# SPDX-License-Identifier: Apache-2.0
"""The place of this process among those that its launcher starts, and the group of them."""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .. import config
from ..device import Device
from ..errors import ConnectionLost, ConnectionRefused, DeadlineExceeded, DeviceError, UsageError
from ..group import Group
from . import tf_config

# Variables that launchers set: rank, number of processes, and the rank on the host.
_LAUNCHERS = (
    ("RANK", "WORLD_SIZE", "LOCAL_RANK"),  # torchrun
    ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),
)
# So long after it was lost, rank 0 may be back.
_RETURN_S = 10.0


@dataclass(frozen=True)
class Role:
    """One process: its number, how many there are, and where rank 0 listens ("" if it is alone)."""

    rank: int
    size: int
    root: str
    local_rank: int
    source: str
    """What told it, for messages."""
    addresses: tuple[str, ...] = ()
    """Of all processes, if it told them."""


def role_of(
    environment: Mapping[str, str], rank: int | None, size: int | None, root: str | None
) -> Role:
    """Return the role that the arguments give, or else TF_CONFIG, or else a launcher's variables.

    Without any of them, it is that of a single process. Raises UsageError, with the remedy, if they are
    incomplete or contradict each other.
    """
    if rank is not None or size is not None:
        if rank is None or size is None:
            raise UsageError(f"rank is {rank} and size {size}: give both, or none")
        return _checked(Role(rank, size, root or "", 0, "the arguments of init()"))
    if environment.get(tf_config.NAME):
        return _checked(_from_tf_config(environment[tf_config.NAME], root))
    for names in _LAUNCHERS:
        if all(name in environment for name in names[:2]):
            return _checked(_from_variables(environment, names, root))
    return Role(0, 1, "", 0, "no launcher")


def device_of(role: Role) -> Device:
    """Open a device where others reach it: at the address that a launcher has told, if it has told one.

    Raises what Device raises, for rank 0 also if that address is not one of this machine.
    """
    name = device_name(role.rank)
    chosen = bool(config.get("BIND_ADDRESS"))
    told = role.root if role.rank == 0 else dict(enumerate(role.addresses)).get(role.rank, "")
    host, _, port = told.rpartition(":")
    if told:
        try:
            return Device(name, None if chosen else host.strip("[]"), int(port or 0))
        except (DeviceError, ConnectionRefused, DeadlineExceeded) as error:
            if role.rank == 0:
                text = (
                    f"rank 0 cannot listen at {told}, where {role.source} says that it is: {error}. Give it "
                    "a free port and an address of this machine; if the others know this machine by "
                    "another address, set RDMATENSOR_BIND_ADDRESS to its own"
                )
                raise type(error)(text, error.status) from None
            # The port may be a server's, and the address one that only others know.
    alone = not role.root
    return Device(name, None if chosen or alone else own_address_towards(role.root))


def device_name(rank: int) -> str:
    """Return the name of the device of this rank, by which others know it."""
    return f"rank {rank}"


def join(device: Device, role: Role, name: str, timeout: float) -> Group:
    """Wait for rank 0, which may start later, and then for the others. Raises what Group raises.

    Rank 0's device has to have the name `device_name(0)`.
    """
    end = until = time.monotonic() + timeout
    lost = None
    pause = 0.02
    while True:
        left = max(end - time.monotonic(), 0.001)
        root = None if role.rank == 0 else role.root
        try:
            return Group(device, role.rank, role.size, root, name, left, device_name(0))
        except ConnectionLost as error:
            # Rank 0 may just have left an earlier group of this name, and will come back.
            lost, until = error, min(end, time.monotonic() + _RETURN_S)
            if role.rank == 0 or time.monotonic() + pause >= until:
                raise
        except ConnectionRefused as error:
            if error.status != "UNREACHABLE" or time.monotonic() + pause >= until:
                raise lost or error from None
        time.sleep(pause)
        pause = min(2 * pause, 1.0)


def own_address_towards(address: str) -> str | None:
    """Return the address of this machine in the network that leads there; None if none does."""
    host, _, port = address.rpartition(":")
    with contextlib.suppress(OSError):
        for family, kind, protocol, _, target in socket.getaddrinfo(
            host.strip("[]"), int(port), type=socket.SOCK_DGRAM
        ):
            with contextlib.suppress(OSError), socket.socket(family, kind, protocol) as asked:
                asked.connect(target)  # which sends nothing
                return str(asked.getsockname()[0])
    return None


def _from_tf_config(text: str, root: str | None) -> Role:
    try:
        config: dict[str, Any] = json.loads(text)
        cluster, task = config["cluster"], config["task"]
        place = (str(task["type"]), int(task["index"]))
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f"TF_CONFIG describes no task ({error!r}): {text[:200]}") from None
    if cluster.get("ps"):
        raise UsageError(
            "TF_CONFIG has parameter servers, which these processes do not use: start workers only "
            "(rdmatensor launch -n 4 train.py)"
        )
    members = [
        ((job, index), str(address))
        for job in ("chief", "worker")
        for index, address in enumerate(cluster.get(job, ()))
    ]
    ranks = [member for member, _ in members]
    if place not in ranks:
        raise UsageError(
            f"TF_CONFIG has no task {place[0]} {place[1]} in its cluster: {text[:200]}"
        )
    rank = ranks.index(place)
    hosts = [address.rpartition(":")[0] for _, address in members]
    return Role(
        rank,
        len(members),
        root or members[0][1],
        hosts[:rank].count(hosts[rank]),
        "TF_CONFIG",
        tuple(address for _, address in members),
    )


def _from_variables(
    environment: Mapping[str, str], names: tuple[str, str, str], root: str | None
) -> Role:
    try:
        rank, size, local = (int(environment.get(name) or 0) for name in names)
    except ValueError as error:
        raise UsageError(f"{', '.join(names)}: {error}") from None
    if not root and "MASTER_ADDR" in environment:
        root = f"{environment['MASTER_ADDR']}:{environment.get('MASTER_PORT', '')}"
    return Role(rank, size, root or "", local, names[0])


def _checked(role: Role) -> Role:
    if not 0 <= role.rank < role.size:
        raise UsageError(
            f"{role.source}: rank {role.rank} of {role.size} processes: ranks are 0 to size - 1"
        )
    host, _, port = role.root.rpartition(":")
    if role.size > 1 and not (host and port.isdecimal() and 0 < int(port) < 65536):
        raise UsageError(
            f"{role.source} does not say where rank 0 listens ({role.root!r}): give "
            'init(root="HOST:PORT"), set MASTER_ADDR and MASTER_PORT, or start with '
            "`rdmatensor launch`"
        )
    return role

# SPDX-License-Identifier: Apache-2.0
"""A lab: hosts with SoftRoCE devices on one network, for the time of a with statement."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from . import emulator, initramfs, kernel
from .environment import SECRET, of_lab
from .errors import LabError
from .host import Host
from .hub import Hub
from .qemu import Machine, Network, kvm_problem

MOST_HOSTS = 16
MEMORY = 2048  # MB
MTU = 9000
DEVICE = "rxe0"
BOOT_SECONDS = 400.0  # a boot takes 4 to 8 seconds on an idle machine, and took 90 on a busy one
_SUBNET = "10.77.0"


class Lab:
    """Hosts that boot when the with statement begins and end when it is left.

        with Lab(hosts=2) as lab:
            server = lab.hosts[0].start(["ibv_rc_pingpong", "-d", "rxe0", "-g", "1"])
            lab.hosts[1].run(["ibv_rc_pingpong", "-d", "rxe0", "-g", "1", lab.addresses[0]])

    Hosts see this machine's files below an overlay. A host's changes are visible to that host only and are
    lost when it ends. The folder `shared` is writable under the same path on this machine and on all hosts.
    Each host has a network card eth0 with its address, and on it the SoftRoCE device rxe0, whose GID index 1
    is RoCE v2 over IPv4. No guest outlives the process that made the lab, even if that process is killed.
    """

    def __init__(
        self,
        hosts: int = 1,
        *,
        timeout: float = 60.0,
        memory: int = MEMORY,
        cpus: int | None = None,
        mtu: int = MTU,
        shared: str | os.PathLike[str] | None = None,
        boot_timeout: float = BOOT_SECONDS,
        say: Callable[[str], None] = lambda line: None,
    ) -> None:
        """Check the arguments. Raises LabError for a wrong one.

        `timeout` is the default for all waits, and `boot_timeout` the limit for two attempts to boot, in
        seconds. Each host has `memory` MB, `cpus` processors (default: at most 2) and an eth0 with an MTU of
        `mtu` bytes. `shared` is an existing folder; the default is a temporary one. `say` announces slow
        steps.
        """
        if not 1 <= hosts <= MOST_HOSTS:
            raise LabError(f"hosts must be 1 to {MOST_HOSTS}, got {hosts}")
        if not 576 <= mtu <= 65535:
            raise LabError(f"mtu must be 576 to 65535, got {mtu}")
        if memory < 256:
            raise LabError(f"memory must be at least 256 MB, got {memory}")
        if shared is not None and not Path(shared).is_dir():
            raise LabError(f"the shared folder {os.fspath(shared)} does not exist")
        self.addresses = tuple(f"{_SUBNET}.{rank + 1}" for rank in range(hosts))
        self.hosts: tuple[Host, ...] = ()
        self._shared = None if shared is None else Path(shared).resolve()
        self._timeout = timeout
        self._memory = memory
        self._cpus = cpus
        self._mtu = mtu
        self._boot_timeout = boot_timeout
        self._say = say
        self._folder: Path | None = None
        self._hub: Hub | None = None

    @property
    def shared(self) -> Path:
        """The folder that this machine and all hosts can write."""
        if self._shared is None:
            raise LabError("a lab has a shared folder only inside its with statement")
        return self._shared

    def __enter__(self) -> Lab:
        """Boot all hosts.

        Raises Unavailable if this machine lacks something, and LabError if the lab's hosts run already.
        """
        if self._folder is not None:
            raise LabError("the lab is inside its with statement already")
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End all hosts and remove temporary files. It may be called again."""
        for host in self.hosts:
            with contextlib.suppress(LabError):
                host.close()
        if self._hub:
            self._hub.close()
            self._hub = None
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def _start(self) -> None:
        self._kvm = not kvm_problem()
        self._emulator = emulator.ensure(self._kvm, self._say)
        guest_kernel = kernel.ensure(self._say)
        self._folder = Path(tempfile.mkdtemp(prefix="rdmatensor-lab-"))
        archive = self._folder / "initramfs"
        archive.write_bytes(initramfs.build(guest_kernel))
        # Guests read the secret from a file, because every user can see QEMU's command line.
        secret = self._folder / "secret"
        secret.touch(0o600)
        secret.write_text(secrets.token_hex(16) + "\n")
        if self._shared is None:
            self._shared = self._folder / "shared"
            self._shared.mkdir()
        if len(self.addresses) > 2:
            cards = {_mac(rank): self._card(rank) for rank in range(len(self.addresses))}
            self._hub = Hub(self._folder / "hub", cards)
        self.hosts = tuple(
            Host(rank, address, self._machine(rank, guest_kernel, archive), self._timeout)
            for rank, address in enumerate(self.addresses)
        )
        for host in self.hosts:
            host.begin(SECRET | of_lab(host.rank, self.addresses, self.shared, DEVICE))
        for host in self.hosts:
            host.wait_ready(self._boot_timeout)

    def _machine(self, rank: int, guest_kernel: kernel.Kernel, archive: Path) -> Machine:
        assert self._folder is not None
        settings = {
            "ADDRESS": self.addresses[rank],
            "HOSTNAME": f"host{rank}",
            "MTU": str(self._mtu),
            "PYTHON": sys.executable,
            "SECRET_FILE": str(self._folder / "secret"),
            "SHARED": str(self.shared),
        }
        several = self._kvm or self._emulator.sound
        return Machine(
            emulator=self._emulator,
            kvm=self._kvm,
            kernel=guest_kernel,
            initramfs=archive,
            memory=self._memory,
            cpus=self._cpus or (min(2, os.cpu_count() or 1) if several else 1),
            shared=self.shared,
            console=self._folder / f"console{rank}",
            settings=settings,
            network=self._network(rank),
        )

    def _network(self, rank: int) -> Network | None:
        assert self._folder is not None
        if len(self.addresses) == 1:
            return None
        remote = self._folder / "hub" if self._hub else self._card(1 - rank)
        return Network(self._card(rank), remote, _mac(rank).hex(":"), self._mtu)

    def _card(self, rank: int) -> Path:
        assert self._folder is not None
        return self._folder / f"card{rank}"


def _mac(rank: int) -> bytes:
    return bytes([0x52, 0x54, 0, 0x77, 0, rank + 1])

# SPDX-License-Identifier: Apache-2.0
"""One QEMU: its command line, its process, and QMP."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .clock import tsc_khz
from .emulator import Emulator
from .errors import DeadlineExceeded, GuestDied, LabError, Unavailable
from .kernel import Kernel

# What follows is killed when the thread that started it ends.
LEASH = ("setpriv", "--pdeathsig", "KILL", "--")
_KVM_CREATE_VM = 0xAE01
QMP_SECONDS = 30.0
# A panic ends QEMU, which must not reboot. The rest saves time, most of it in emulation.
KERNEL_OPTIONS = (
    *("console=ttyS0", "quiet", "panic=-1"),
    *("mitigations=off", "random.trust_cpu=on", "nokaslr", "tsc=reliable", "nowatchdog"),
    *("cryptomgr.notests", "lsm=capability", "audit=0", "8250.nr_uarts=1"),
    "rcupdate.rcu_expedited=1",
)


def kvm_problem() -> str:
    """Why KVM cannot be used here, "" when it can. A device file alone proves nothing."""
    flags = re.search(r"^flags\s*:(.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    if not flags or not {"vmx", "svm"} & set(flags[1].split()):
        # Some hypervisors offer a /dev/kvm all the same, for guests of a special kind.
        return "the processor shows neither vmx nor svm (no nested virtualisation)"
    try:
        kvm = os.open("/dev/kvm", os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        return f"/dev/kvm: {error.strerror}"
    try:
        os.close(fcntl.ioctl(kvm, _KVM_CREATE_VM, 0))
    except OSError as error:
        return f"/dev/kvm makes no virtual machine: {error.strerror}"
    finally:
        os.close(kvm)
    return ""


@dataclass(frozen=True)
class Network:
    """A guest's network card, joined to others by unix datagram sockets."""

    local: Path
    remote: Path
    mac: str
    mtu: int


@dataclass(frozen=True)
class Machine:
    """What a guest is made of. `settings` reach its init as environment variables."""

    emulator: Emulator
    kvm: bool
    kernel: Kernel
    initramfs: Path
    memory: int  # MB
    cpus: int
    shared: Path
    console: Path
    settings: dict[str, str]
    network: Network | None


def command(machine: Machine, port_fd: int, qmp_fd: int) -> list[str]:
    """QEMU's command line. The descriptors are ends of stream sockets, to be inherited."""
    # Threads of their own for the virtual processors: two guests share the host's.
    accelerator = "kvm" if machine.kvm else "tcg,thread=multi"
    unpacked = None if machine.kvm else machine.kernel.unpacked
    boot = [
        *KERNEL_OPTIONS,
        *_clock(machine),
        *(_setting(name, value) for name, value in machine.settings.items()),
    ]
    words = [
        machine.emulator.program,
        *machine.emulator.options,
        *("-M", "q35", "-accel", accelerator, "-cpu", "max"),
        *("-smp", str(machine.cpus), "-m", str(machine.memory)),
        *("-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"),
        *("-kernel", str(unpacked or machine.kernel.image), "-initrd", str(machine.initramfs)),
        *("-append", " ".join(boot)),
        *("-chardev", f"file,id=console,path={_path(machine.console)}"),
        *("-serial", "chardev:console"),
        *("-chardev", f"socket,id=port,fd={port_fd}", "-device", "virtio-serial-pci"),
        *("-device", "virtserialport,chardev=port,name=rdmatensor"),
        *("-chardev", f"socket,id=qmp,fd={qmp_fd}", "-mon", "chardev=qmp,mode=control"),
        *_folder("root", Path("/"), ",readonly=on,multidevs=remap"),
        *_folder("shared", machine.shared, ",multidevs=remap"),
    ]
    if machine.network:
        card = machine.network
        words += [
            "-netdev",
            f"dgram,id=net,local.type=unix,local.path={_path(card.local)},"
            f"remote.type=unix,remote.path={_path(card.remote)}",
            "-device",
            f"virtio-net-pci,netdev=net,id=card,mac={card.mac},host_mtu={card.mtu},romfile=",
        ]
    return words


def _clock(machine: Machine) -> list[str]:
    """What an emulated guest's kernel could only guess while its processors wait for others."""
    khz = 0 if machine.kvm else tsc_khz()
    return [f"tsc_early_khz={khz}"] if khz else []


def _path(path: Path) -> str:
    """A path as a value of QEMU's options, where a comma is doubled."""
    return str(path).replace(",", ",,")


def _folder(tag: str, path: Path, options: str) -> list[str]:
    fsdev = f"local,id={tag},path={_path(path)},security_model=none{options}"
    return ["-fsdev", fsdev, "-device", f"virtio-9p-pci,fsdev={tag},mount_tag={tag}"]


def _setting(name: str, value: str) -> str:
    if '"' in value or "\n" in value:
        raise LabError(f"{value!r}: a quote or a newline cannot be passed to the guest's kernel")
    return f'LAB_{name}="{value}"' if " " in value else f"LAB_{name}={value}"


class Qemu:
    """A running QEMU. It ends with the thread that made it, however that ends.

    Methods may be called from any thread.
    """

    def __init__(self, machine: Machine) -> None:
        """Starts it. Unavailable when setpriv, of util-linux, is not installed."""
        if shutil.which(LEASH[0]) is None:
            raise Unavailable(f"{LEASH[0]} is not installed: apt-get install util-linux")
        self._errors = machine.console.with_suffix(".qemu")
        self.port, port = socket.socketpair()
        qmp, theirs = socket.socketpair()
        with port, theirs, self._errors.open("wb") as errors:
            self.process = subprocess.Popen(
                [*LEASH, *command(machine, port.fileno(), theirs.fileno())],
                env=machine.emulator.environment,
                pass_fds=[port.fileno(), theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=errors,
                stderr=errors,
                # Ctrl-C is for the lab, which then ends its guests.
                start_new_session=True,
            )
        self._qmp = _Qmp(qmp)

    def execute(self, name: str, /, **arguments: Any) -> None:
        """A QMP command. GuestDied when QEMU is gone, LabError when it refuses."""
        self._qmp.execute(name, arguments)

    def kill(self) -> None:
        """SIGKILL, and waits for the end: the power cord is pulled."""
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def close(self) -> None:
        """Kills it, and closes its sockets."""
        self.kill()
        # Wakes a thread that reads it; the number of a closed descriptor could be another's.
        with contextlib.suppress(OSError):
            self.port.shutdown(socket.SHUT_RDWR)
        self._qmp.close()

    def complaints(self) -> str:
        """What QEMU itself printed, for messages about its end."""
        with contextlib.suppress(OSError):
            return self._errors.read_text(errors="replace").strip()
        return ""


class _Qmp:
    """QEMU's control socket: one JSON object a line. Thread-safe."""

    def __init__(self, line: socket.socket) -> None:
        self._lock = threading.Lock()
        self._socket = line
        self._socket.settimeout(QMP_SECONDS)
        self._file = line.makefile("rwb")
        self._greeted = False

    def execute(self, name: str, arguments: dict[str, Any]) -> None:
        with self._lock:
            if not self._greeted:
                self._greeted = True
                self._read()
                self._ask("qmp_capabilities", {})
            self._ask(name, arguments)

    def _ask(self, name: str, arguments: dict[str, Any]) -> None:
        try:
            self._file.write(json.dumps({"execute": name, "arguments": arguments}).encode() + b"\n")
            self._file.flush()
        except OSError as error:
            raise GuestDied(f"{name}: QEMU has ended") from error
        answer = self._read()
        while "event" in answer:
            answer = self._read()
        if "error" in answer:
            raise LabError(f"QEMU refuses {name}: {answer['error'].get('desc')}")

    def _read(self) -> dict[str, Any]:
        try:
            line = self._file.readline()
        except TimeoutError as error:
            raise DeadlineExceeded(f"QEMU does not answer for {QMP_SECONDS:.0f} s") from error
        except OSError:
            line = b""
        if not line:
            raise GuestDied("QEMU has ended")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._file.close()
        self._socket.close()

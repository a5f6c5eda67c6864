# SPDX-License-Identifier: Apache-2.0
"""Run one QEMU: build its command line, start it and control it over QMP."""

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

# The kernel kills a command with this prefix when the thread that started it ends.
LEASH = ("setpriv", "--pdeathsig", "KILL", "--")
_KVM_CREATE_VM = 0xAE01
QMP_SECONDS = 30.0
# A panic ends QEMU. The other options save time, mostly in emulation.
KERNEL_OPTIONS = (
    *("console=ttyS0", "quiet", "panic=-1"),
    *("mitigations=off", "random.trust_cpu=on", "nokaslr", "tsc=reliable", "nowatchdog"),
    *("cryptomgr.notests", "lsm=capability", "audit=0", "8250.nr_uarts=1"),
    "rcupdate.rcu_expedited=1",
)


def kvm_problem() -> str:
    """Return why KVM cannot be used here, or "" if it can. The file /dev/kvm alone proves nothing."""
    flags = re.search(r"^flags\s*:(.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    if not flags or not {"vmx", "svm"} & set(flags[1].split()):
        # Some hypervisors still offer a /dev/kvm, for a special kind of guest.
        return "the processor shows neither vmx nor svm (no nested virtualisation)"
    try:
        kvm = os.open("/dev/kvm", os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        return f"/dev/kvm: {error.strerror}"
    try:
        os.close(fcntl.ioctl(kvm, _KVM_CREATE_VM, 0))
    except OSError as error:
        return f"/dev/kvm cannot create a virtual machine: {error.strerror}"
    finally:
        os.close(kvm)
    return ""


@dataclass(frozen=True)
class Network:
    """A guest's network card, which unix datagram sockets connect to other cards."""

    local: Path
    remote: Path
    mac: str
    mtu: int


@dataclass(frozen=True)
class Machine:
    """The parts of a guest. Its init script gets `settings` as environment variables."""

    emulator: Emulator
    kvm: bool
    kernel: Kernel
    initramfs: Path
    memory: int  # in MB
    cpus: int
    shared: Path
    console: Path
    settings: dict[str, str]
    network: Network | None


def command(machine: Machine, port_fd: int, qmp_fd: int) -> list[str]:
    """Return QEMU's command line. QEMU inherits the descriptors, which are stream sockets."""
    # Each virtual processor gets its own thread, because several guests share the host's processors.
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
    """Tell an emulated guest's kernel what it could not measure while its processors wait."""
    khz = 0 if machine.kvm else tsc_khz()
    return [f"tsc_early_khz={khz}"] if khz else []


def _path(path: Path) -> str:
    """Escape a path for QEMU's options by doubling commas."""
    return str(path).replace(",", ",,")


def _folder(tag: str, path: Path, options: str) -> list[str]:
    fsdev = f"local,id={tag},path={_path(path)},security_model=none{options}"
    return ["-fsdev", fsdev, "-device", f"virtio-9p-pci,fsdev={tag},mount_tag={tag}"]


def _setting(name: str, value: str) -> str:
    if '"' in value or "\n" in value:
        raise LabError(f"{value!r}: the guest's kernel takes no quotes or newlines")
    return f'LAB_{name}="{value}"' if " " in value else f"LAB_{name}={value}"


class Qemu:
    """A running QEMU. The kernel kills it when the thread that made it ends.

    Any thread may call its methods.
    """

    def __init__(self, machine: Machine) -> None:
        """Start QEMU. Raises Unavailable if setpriv (util-linux) is not installed."""
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
                # Ctrl-C must reach only the lab, which then ends its guests.
                start_new_session=True,
            )
        qmp.settimeout(QMP_SECONDS)
        self._qmp = qmp.makefile("rwb")
        qmp.close()  # the file keeps it open
        self._qmp_greeted = False
        self._qmp_lock = threading.Lock()

    def execute(self, name: str, /, **arguments: Any) -> None:
        """Run a QMP command. Raises GuestDied if QEMU has ended, LabError if QEMU refuses it."""
        try:
            with self._qmp_lock:
                if not self._qmp_greeted:
                    self._qmp.readline()  # the greeting
                    self._ask("qmp_capabilities", {})
                    self._qmp_greeted = True
                self._ask(name, arguments)
        except TimeoutError as error:
            raise DeadlineExceeded(f"QEMU did not answer in {QMP_SECONDS:g} s") from error
        except (OSError, ValueError) as error:
            raise GuestDied(f"{name}: QEMU has ended") from error

    def _ask(self, name: str, arguments: dict[str, Any]) -> None:
        self._qmp.write(json.dumps({"execute": name, "arguments": arguments}).encode() + b"\n")
        self._qmp.flush()
        # Events may precede the answer. json refuses the empty line at the end of the stream.
        while "event" in (answer := json.loads(self._qmp.readline())):
            pass
        if "error" in answer:
            raise LabError(f"QEMU refuses {name}: {answer['error'].get('desc')}")

    def kill(self) -> None:
        """Kill QEMU with SIGKILL, as if the power failed, and wait for its end."""
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def close(self) -> None:
        """Kill QEMU and close its sockets."""
        self.kill()
        # This wakes a thread that reads the port. Closing could give its descriptor to someone else.
        with contextlib.suppress(OSError):
            self.port.shutdown(socket.SHUT_RDWR)
        with contextlib.suppress(OSError):
            self._qmp.close()

    def complaints(self) -> str:
        """Return what QEMU printed, for messages about its end."""
        with contextlib.suppress(OSError):
            return self._errors.read_text(errors="replace").strip()
        return ""

# SPDX-License-Identifier: Apache-2.0
"""A host of a lab: a guest that runs commands and can be disconnected, killed and restarted."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import socket
import struct
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from . import environment
from .errors import DeadlineExceeded, GuestDied, LabError
from .guest import protocol
from .process import Done, Process, Sink
from .qemu import Machine, Qemu

_CHUNK = 65536
# A guest that takes no input for this long is stuck.
_SEND_SECONDS = 30
_QUIT_SECONDS = 30.0
# A boot takes 4 to 8 seconds on an idle machine. A much longer one may have lost an interrupt and hang.
_FIRST_BOOT_SECONDS = 60.0
_CONSOLE_LINES = 15


class Boot:
    """One life of a guest: its QEMU and the thread that serves it until it ends."""

    def __init__(self, machine: Machine, name: str) -> None:
        self.machine = machine
        self._name = name
        self._processes: dict[int, Process] = {}
        self._numbers = itertools.count(1)
        self._sending = threading.Lock()
        self._changed = threading.Condition()
        self._qemu: Qemu | None = None
        self._failure: BaseException | None = None
        self._state = "starting"  # then "ready", "synced" and "dead"
        self._ended_by = ""
        # QEMU ends with the thread that starts it, so this thread starts it and serves it.
        threading.Thread(target=self._live, name=name, daemon=True).start()

    # The serving thread runs the methods below.

    def _live(self) -> None:
        try:
            qemu = Qemu(self.machine)
        except BaseException as error:  # wait_ready() raises it
            self._end(error)
            return
        seconds = struct.pack("ll", _SEND_SECONDS, 0)
        qemu.port.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, seconds)
        with self._changed:
            self._qemu = qemu
            self._changed.notify_all()
        failure: BaseException | None = None
        try:
            self._serve(qemu.port)
        except (OSError, protocol.BrokenStream) as error:
            failure = LabError(f"{self._name}: {error}")
        except BaseException as error:
            failure = error
        qemu.close()
        self._end(failure)
        qemu.port.close()

    def _serve(self, port: socket.socket) -> None:
        parser = protocol.Parser()
        while data := port.recv(_CHUNK):
            for kind, number, payload in parser.feed(data):
                if kind in (protocol.READY, protocol.BYE):
                    with self._changed:
                        self._state = "ready" if kind == protocol.READY else "synced"
                        self._changed.notify_all()
                elif number in self._processes:
                    self._processes[number].handle(kind, payload)

    def _end(self, failure: BaseException | None) -> None:
        with self._changed:
            self._state = "dead"
            self._failure = failure
            self._changed.notify_all()
            processes = list(self._processes.values())
        for process in processes:
            process.orphan()

    # Any thread may call the methods below.

    def _wait_for(self, states: set[str], timeout: float) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: self._state in states, timeout)

    def wait_ready(self, timeout: float) -> None:
        """Wait until commands can start. Raises GuestDied, Unavailable or DeadlineExceeded."""
        if not self._wait_for({"ready", "dead"}, timeout):
            raise DeadlineExceeded(
                f"{self._name} did not boot in {timeout:g} s; its console ends with:\n{self.console()}"
            )
        if self._state == "dead":
            if isinstance(self._failure, LabError):
                raise self._failure
            raise GuestDied(f"{self._name} did not boot: {self.obituary()}") from self._failure

    def wait_dead(self, timeout: float) -> None:
        """Wait for the end of QEMU. Raises DeadlineExceeded."""
        if not self._wait_for({"dead"}, timeout):
            raise DeadlineExceeded(f"{self._name} still runs after {timeout:g} s")

    def alive(self) -> bool:
        """Return whether the guest has not ended."""
        return self._state != "dead"

    def obituary(self) -> str:
        """Return why the guest ended, as far as is known."""
        if self._ended_by:
            return self._ended_by
        explanation = self.explanation()
        if explanation:
            return explanation
        qemu = self._qemu.complaints() if self._qemu else ""
        return f"QEMU has ended. {qemu}\n{self.console()}".strip()

    def explanation(self) -> str:
        """Return the failure that the guest's init reported, or ""."""
        lines = self.console(1000).splitlines()
        return next((line[5:] for line in reversed(lines) if line.startswith("lab: ")), "")

    def console(self, count: int = _CONSOLE_LINES) -> str:
        """Return the last lines of the guest's console."""
        try:
            text = self.machine.console.read_text(errors="replace")
        except OSError:
            return ""
        return "\n".join(text.splitlines()[-count:])

    def send(self, kind: int, number: int, payload: bytes = b"") -> None:
        """Send a frame to the agent. Raises GuestDied, or DeadlineExceeded if the guest takes no input."""
        qemu = self._qemu
        if qemu is None or not self.alive():
            raise GuestDied(f"{self._name} is not running: {self.obituary()}")
        try:
            with self._sending:
                qemu.port.sendall(protocol.pack(kind, number, payload))
        except BlockingIOError as error:
            raise DeadlineExceeded(f"{self._name} took no input for {_SEND_SECONDS} s") from error
        except OSError as error:
            raise GuestDied(f"{self._name} has ended: {self.obituary()}") from error

    def start(
        self, payload: bytes, args: list[str], timeout: float, sinks: dict[int, Sink | None]
    ) -> Process:
        """Start a command. See Host.start()."""
        number = next(self._numbers)
        process = Process(self, number, args, timeout, sinks)
        with self._changed:
            self._processes[number] = process
        self.send(protocol.START, number, payload)
        return process

    @property
    def qemu(self) -> Qemu:
        """The guest's QEMU. Raises GuestDied if it was never started."""
        if self._qemu is None:
            raise GuestDied(f"{self._name} is not running")
        return self._qemu

    def kill(self, why: str) -> None:
        """Kill QEMU and wait for its end."""
        self._ended_by = self._ended_by or why
        with self._changed:
            # If the thread is just starting QEMU, wait until it has or has failed.
            self._changed.wait_for(lambda: self._qemu is not None or self._state == "dead")
        if self._qemu:
            self._qemu.kill()
        self.wait_dead(_QUIT_SECONDS)

    def close(self) -> None:
        """End the guest, after what it wrote into shared folders has arrived."""
        if self._state == "ready":
            with contextlib.suppress(LabError):
                self.send(protocol.QUIT, 0)
                self._wait_for({"synced", "dead"}, _QUIT_SECONDS)
        self.kill("the lab was closed")


class Host:
    """One host of a lab. Lab makes it, and any thread may call its methods.

    Hosts do not wait for each other. `rank`, `address` (the IPv4 address of eth0 and of the SoftRoCE device
    rxe0) and `name` survive a restart.
    """

    def __init__(self, rank: int, address: str, machine: Machine, timeout: float) -> None:
        self.rank = rank
        self.address = address
        self.name = f"host{rank}"
        self._machine = machine
        self._timeout = timeout
        self._environment: dict[str, str] = {}
        self._boot: Boot | None = None

    # Life.

    def begin(self, environment_of_commands: Mapping[str, str]) -> None:
        """Start the boot. Lab calls it, then wait_ready()."""
        self._environment = dict(environment_of_commands)
        self._boot = Boot(self._machine, self.name)

    def wait_ready(self, timeout: float) -> None:
        """Wait for the boot. Raises GuestDied, Unavailable or DeadlineExceeded.

        A guest that crashes during the boot, or is not ready after a minute (or half of the time-out),
        boots once more: emulated guests crash or lose an interrupt now and then.
        """
        end = time.monotonic() + timeout
        try:
            self._now().wait_ready(min(timeout / 2, _FIRST_BOOT_SECONDS))
        except (GuestDied, DeadlineExceeded):
            if self._now().explanation():
                raise
            self._now().kill("it did not boot")
            self.begin(self._environment)
            self._now().wait_ready(end - time.monotonic())

    @property
    def alive(self) -> bool:
        """Whether the guest has not ended."""
        return self._boot is not None and self._boot.alive()

    @property
    def console(self) -> str:
        """The last lines of the guest's console, which show kernel messages."""
        return self._now().console()

    @property
    def qemu_pid(self) -> int:
        """The process id of the guest's QEMU on this machine."""
        return self._now().qemu.process.pid

    def kill(self) -> None:
        """Kill QEMU with SIGKILL. The host vanishes without closing its connections."""
        self._now().kill(f"{self.name} was killed")

    def restart(self, timeout: float | None = None) -> None:
        """Kill the host if it runs and boot it again with the same address. Its files are lost."""
        if self.alive:
            self.kill()
        self.begin(self._environment)
        self.wait_ready(self._timeout if timeout is None else timeout)

    def close(self) -> None:
        """End the guest, after what it wrote into the shared folder has arrived."""
        if self._boot is not None:
            self._boot.close()

    def _now(self) -> Boot:
        if self._boot is None:
            raise LabError(f"{self.name} was not started: use the lab in a with statement")
        return self._boot

    # Commands.

    def start(
        self,
        args: Sequence[str | os.PathLike[str]],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | os.PathLike[str] | None = None,
        stdin: bool = False,
        stdout: Sink | None = None,
        stderr: Sink | None = None,
        terminal: str = "",
    ) -> Process:
        """Start a command and return at once. Several commands may run at the same time.

        `env` adds variables to those of environment.for_commands(). `cwd` defaults to the caller's folder.
        Without `stdin`, the command reads end of file. `stdout` and `stderr` are called with each piece of
        output, which the Process then does not keep. `terminal` ("ROWS COLUMNS") makes a terminal its three
        streams. A command that cannot run ends with 127 or 126. Raises GuestDied if the guest is not
        running.
        """
        words = [os.fspath(word) for word in args]
        variables = environment.for_commands() | self._environment | dict(env or {})
        folder = str(Path.cwd()) if cwd is None else os.fspath(cwd)
        payload = protocol.pack_start(words, variables, folder, terminal)
        sinks = {protocol.STDOUT: stdout, protocol.STDERR: stderr}
        process = self._now().start(payload, words, self._timeout, sinks)
        if not stdin and not terminal:
            with contextlib.suppress(GuestDied):  # Process.wait() raises it
                process.close_stdin()
        return process

    def run(
        self,
        args: Sequence[str | os.PathLike[str]],
        *,
        timeout: float | None = None,
        check: bool = True,
        env: Mapping[str, str] | None = None,
        cwd: str | os.PathLike[str] | None = None,
    ) -> Done:
        """Run a command to its end, for at most `timeout` seconds (default: the lab's).

        Raises DeadlineExceeded after killing a command that takes longer. With `check`, raises LabError
        unless the status is 0.
        """
        process = self.start(args, env=env, cwd=cwd)
        try:
            process.wait(timeout)
        except DeadlineExceeded:
            process.send_signal(signal.SIGKILL, group=True)
            raise
        done = process.done()
        if check and done.returncode != 0:
            said = done.stderr or done.stdout
            raise LabError(f"{' '.join(process.args)!r} on {self.name}: {done.returncode}\n{said}")
        return done

    # Faults.

    def link(self, up: bool) -> None:
        """Unplug or plug in the network cable and wait until eth0 notices. Needs several hosts."""
        self._needs_network("link")
        self._now().qemu.execute("set_link", name="card", up=up)
        carrier = "1" if up else "0"
        end = time.monotonic() + self._timeout
        while self.run(["cat", "/sys/class/net/eth0/carrier"]).stdout.strip() != carrier:
            if time.monotonic() > end:
                raise DeadlineExceeded(f"eth0 of {self.name} did not notice the change of its link")

    def netem(self, *rule: str) -> None:
        """Impair what this host sends, as `tc ... netem` does: with "loss", "1%", or "delay", "5ms".

        Without a rule, this ends. It needs several hosts. Replacing one rule by another does not interrupt
        traffic. Adding the first rule and removing the last one stop the card for a moment, and rxe breaks a
        queue pair if the card refuses a packet. So set a rule before traffic starts, for example ("limit",
        "1000").
        """
        self._needs_network("netem")
        if rule:
            self.run(["tc", "qdisc", "replace", "dev", "eth0", "root", "netem", *rule])
        else:
            self.run(["tc", "qdisc", "del", "dev", "eth0", "root"], check=False)

    def _needs_network(self, what: str) -> None:
        if self._machine.network is None:
            raise LabError(f"{what}: a single host has no network; use Lab(hosts=2)")

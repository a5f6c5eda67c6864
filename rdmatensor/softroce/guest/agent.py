# SPDX-License-Identifier: Apache-2.0
"""Process 1 of a guest starts commands for the lab, carries their streams and reaps processes.

It has one thread with a poll loop. It ends when the lab closes its side of the port, and the guest ends
with it, so no guest outlives its lab. It runs in the host's Python on an emulated processor, so it imports
little: neither subprocess nor json.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import sys
import termios

TYPE_CHECKING = False  # the type checker sets it to True; importing typing is slow
if TYPE_CHECKING:
    from . import protocol
else:
    import protocol  # in the guest, it lies beside this file

CHUNK = 65536
# A pipe holds 64 KiB; reading a terminal returns at most 4 KiB.
MOST_READS_OF_A_FULL_PIPE = 32


def find_port(name: str) -> str:
    """Return the device of the virtio-serial port that QEMU calls `name`."""
    for entry in os.scandir("/sys/class/virtio-ports"):
        fd = os.open(f"{entry.path}/name", os.O_RDONLY)
        found = os.read(fd, CHUNK).strip().decode()
        os.close(fd)
        if found == name:
            return f"/dev/{entry.name}"
    raise FileNotFoundError(f"no virtio port named {name}")


def set_size(fd: int, size: str) -> None:
    """Set a terminal's size from "rows columns"."""
    rows, columns = (int(word).to_bytes(2, "little") for word in size.split())
    fcntl.ioctl(fd, termios.TIOCSWINSZ, rows + columns + bytes(4))


class Child:
    """A command with its pid and the lab's ends of its streams."""

    def __init__(self, number: int, payload: bytes) -> None:
        self.number = number
        argv, env, cwd, terminal = protocol.unpack_start(payload)
        self.outputs: dict[int, int] = {}  # {descriptor: kind of frame}
        self.pending = bytearray()  # not yet written to its standard input
        self.at_end = False  # end of file follows `pending`
        self.stdin: int | None
        if terminal:
            master, slave = os.openpty()
            set_size(master, terminal)
            theirs = [slave, slave, slave]
            self.stdin = master
            self.outputs[master] = protocol.STDOUT
        else:
            (in_read, in_write), (out_read, out_write), (err_read, err_write) = (
                os.pipe() for _ in range(3)
            )
            theirs = [in_read, out_write, err_write]
            self.stdin = in_write
            self.outputs = {out_read: protocol.STDOUT, err_read: protocol.STDERR}
        self.pid = os.fork()
        if self.pid == 0:
            become(argv, env, cwd, theirs, bool(terminal))
        for fd in set(theirs):
            os.close(fd)
        for fd in {self.stdin, *self.outputs}:
            os.set_blocking(fd, False)

    def feed(self) -> None:
        """Write as much input as the process accepts now."""
        if self.stdin is None:
            return
        try:
            while self.pending:
                del self.pending[: os.write(self.stdin, self.pending)]
        except BlockingIOError:
            return
        except OSError:  # nobody reads the input any more
            self.pending.clear()
            self.at_end = True
        if self.at_end:
            if self.stdin not in self.outputs:
                os.close(self.stdin)
            self.stdin = None


def become(argv: list[str], env: dict[str, str], cwd: str, fds: list[int], terminal: bool) -> None:
    """Replace the new process by the command, or exit with 126 or 127 as a shell does."""
    status = 126
    try:
        os.setsid()
        for target, fd in enumerate(fds):
            os.dup2(fd, target)
        if terminal:
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        for number in (signal.SIGPIPE, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        signal.set_wakeup_fd(-1)
        os.chdir(cwd)
        os.execvpe(argv[0], argv, env)
    except BaseException as error:
        if isinstance(error, FileNotFoundError):
            status = 127
        os.write(2, f"rdmatensor softroce: cannot run {argv[0]!r} in {cwd}: {error}\n".encode())
    finally:
        os._exit(status)


class Agent:
    """A poll loop that serves the lab."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._parser = protocol.Parser()
        self._children: dict[int, Child] = {}  # {number: child}
        self._readers: dict[int, Child] = {}  # {descriptor: child}
        self._poll = select.poll()
        self._poll.register(port, select.POLLIN)
        self._wake, wake_write = os.pipe()
        for fd in (self._wake, wake_write):
            os.set_blocking(fd, False)
        # Process 1 also reaps orphans of its children.
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        self._poll.register(self._wake, select.POLLIN)

    def run(self) -> None:
        """Serve until the lab closes the port."""
        self._send(protocol.READY, 0)
        while True:
            for fd, events in self._poll.poll():
                if fd == self._port:
                    data = os.read(fd, CHUNK)
                    if not data:
                        return
                    for kind, number, payload in self._parser.feed(data):
                        self._handle(kind, number, payload)
                elif fd == self._wake:
                    os.read(fd, CHUNK)
                    self._reap()
                elif fd in self._readers:
                    self._carry(fd, events)

    def _send(self, kind: int, number: int, payload: bytes = b"") -> None:
        data = memoryview(protocol.pack(kind, number, payload))
        while data:
            data = data[os.write(self._port, data) :]

    def _handle(self, kind: int, number: int, payload: bytes) -> None:
        if kind == protocol.QUIT:
            os.sync()
            self._send(protocol.BYE, 0)
        elif kind == protocol.START:
            self._start(number, payload)
        child = self._children.get(number)
        if child is None:
            return  # the child ended while the frame was on its way
        if kind == protocol.STDIN:
            child.pending += payload
            child.at_end |= not payload
            self._feed(child)
        elif kind in (protocol.SIGNAL, protocol.SIGNAL_GROUP):
            send = os.kill if kind == protocol.SIGNAL else os.killpg
            try:
                send(child.pid, int(payload))
            except (OSError, ValueError) as error:
                print(f"lab: signal {payload!r}: {error}", file=sys.stderr)
        elif kind == protocol.RESIZE and child.stdin is not None:
            set_size(child.stdin, payload.decode())

    def _start(self, number: int, payload: bytes) -> None:
        child = Child(number, payload)
        self._children[number] = child
        for fd in child.outputs:
            self._readers[fd] = child
            self._poll.register(fd, select.POLLIN)

    def _feed(self, child: Child) -> None:
        fd = child.stdin
        if fd is None:
            return
        child.feed()
        wanted = select.POLLIN if fd in child.outputs else 0
        if child.stdin is None and not wanted:
            if self._readers.pop(fd, None):
                self._poll.unregister(fd)
            return
        if child.pending:
            wanted |= select.POLLOUT
        self._readers[fd] = child
        self._poll.register(fd, wanted)

    def _carry(self, fd: int, events: int) -> None:
        child = self._readers[fd]
        if fd == child.stdin and events & (select.POLLOUT | select.POLLERR):
            self._feed(child)
        if fd in child.outputs and events & (select.POLLIN | select.POLLHUP | select.POLLERR):
            self._forward(child, fd)

    def _forward(self, child: Child, fd: int) -> bool:
        """Send one piece of output. Returns False if there is none now, or the stream has ended."""
        try:
            data = os.read(fd, CHUNK)
        except BlockingIOError:
            return False
        except OSError:  # the last process has closed the terminal
            data = b""
        if data:
            self._send(child.outputs[fd], child.number, data)
            return True
        self._poll.unregister(fd)
        del self._readers[fd]
        del child.outputs[fd]
        if child.stdin == fd:
            child.stdin = None
        os.close(fd)
        return False

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            for child in list(self._children.values()):
                if child.pid == pid:
                    self._finish(child, os.waitstatus_to_exitcode(status))

    def _finish(self, child: Child, status: int) -> None:
        """Send the output that is there, then the status. Orphans of the child may still write output."""
        for fd in list(child.outputs):
            for _ in range(MOST_READS_OF_A_FULL_PIPE):
                if not self._forward(child, fd):
                    break
        child.pending.clear()
        child.at_end = True
        self._feed(child)
        del self._children[child.number]
        self._send(protocol.EXIT, child.number, str(status).encode())


def main() -> None:
    """Serve the lab at the port that QEMU calls "rdmatensor"."""
    port = os.open(find_port("rdmatensor"), os.O_RDWR | os.O_CLOEXEC)
    Agent(port).run()


if __name__ == "__main__":
    main()

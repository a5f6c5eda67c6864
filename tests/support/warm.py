# SPDX-License-Identifier: Apache-2.0
"""A Python that has TensorFlow imported already.

Importing TensorFlow costs five seconds of a processor, and the tests start a hundred processes that use it.
`python()` is the path of an interpreter that is used as sys.executable is, but whose processes are forks of
one that has imported it:

    subprocess.Popen([python(), "script.py", "argument"])

What is started is a small client, which hands its arguments, environment and descriptors over, passes
signals on and ends as the fork does; a fork whose client is gone is killed. In the fork, sys.executable is
python() again. What is read while a program starts or TensorFlow is imported must be told to python():
LD_PRELOAD, for example.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import sys

TYPE_CHECKING = False  # a client imports as little as it can
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, NoReturn

START_SECONDS = 300.0
# Where a process that tests start finds theirs.
VARIABLE = "RDMATENSOR_TEST_WARM"
PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
PR_SET_PDEATHSIG = 1
COLLECT_AFTER = 20_000  # objects
# What else can stand before the program: it changes nothing in a process that has begun already.
FLAGS = ("-P", "-S", "-E", "-s")

_paths: dict[tuple[tuple[str, str], ...], str] = {}


def python(**variables: str) -> str:
    """The path of the interpreter. `variables` are those that are read while TensorFlow is imported."""
    key = tuple(sorted(variables.items()))
    if not key and VARIABLE in os.environ:
        return os.environ[VARIABLE]
    if key not in _paths:
        _paths[key] = _start(variables)
    if not key:
        os.environ[VARIABLE] = _paths[key]
    return _paths[key]


def _start(variables: dict[str, str]) -> str:
    import atexit
    import shutil
    import subprocess
    import tempfile
    from pathlib import Path

    folder = Path(tempfile.mkdtemp(prefix="rdmatensor-warm-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    path, address = folder / "python", str(folder / "socket")
    client = f"{sys.executable} -S -E -s {__file__} run {address}"
    path.write_text(f'#!/bin/sh\nexec {client} "$@"\n')
    path.chmod(0o755)
    # It ends with its standard input, which nobody writes to: with this process.
    server = subprocess.Popen(
        [sys.executable, __file__, "serve", address, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "1"} | variables,
        start_new_session=True,
    )
    atexit.register(server.terminate)
    assert server.stdout is not None
    ready, _, _ = select.select([server.stdout], [], [], START_SECONDS)
    if not ready or not server.stdout.readline():
        raise RuntimeError("TensorFlow cannot be imported, or not in time")
    return str(path)


# The client.


def run(address: str, arguments: Sequence[str]) -> NoReturn:
    """Runs `arguments` in a fork and ends as it ends."""
    line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    line.connect(address)
    request = {"arguments": arguments, "environment": dict(os.environ), "folder": os.getcwd()}
    with open(f"{address}.{os.getpid()}", "w+") as file:  # it may be too long for a packet
        os.unlink(file.name)
        json.dump(request, file)
        file.flush()
        socket.send_fds(line, [b"start"], [file.fileno(), 0, 1, 2])
    pid = int(line.recv(64))

    def pass_on(number: int, frame: object) -> None:
        try:
            os.kill(pid, number)
        except ProcessLookupError:  # it has ended, as we are about to be told
            pass

    for number in PASSED_ON:
        signal.signal(number, pass_on)
    status = int(line.recv(64) or b"-9")
    if status < 0:
        signal.signal(-status, signal.SIG_DFL) if -status != signal.SIGKILL else None
        os.kill(os.getpid(), -status)
    os._exit(status)


# The server.


class Server:
    """Forks, and tells the clients how the forks end."""

    def __init__(self, address: str) -> None:
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(address)
        self._listener.listen(64)
        self._lines: dict[int, socket.socket] = {}  # by the fork's process id
        self._wake, wake = os.pipe()
        os.set_blocking(wake, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def serve(self) -> dict[str, Any] | None:
        """In the server: None, when its standard input ends. In a fork: what it is to do."""
        while True:
            lines = {line.fileno(): pid for pid, line in self._lines.items()}
            waited_for: list[Any] = [0, self._wake, self._listener, *lines]
            for each in select.select(waited_for, [], [])[0]:
                if each == 0:
                    return None
                if each == self._wake:
                    os.read(self._wake, 4096)
                    self._reap()
                elif each is self._listener:
                    request = self._fork()
                    if request:
                        return request
                elif lines[each] in self._lines:  # clients say nothing more: this one is gone
                    os.kill(lines[each], signal.SIGKILL)
                    self._lines.pop(lines[each]).close()

    def _fork(self) -> dict[str, Any] | None:
        line, _ = self._listener.accept()
        _, passed, _, _ = socket.recv_fds(line, 64, 4)
        file, *streams = passed
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for other in (self._listener, line, *self._lines.values()):
                other.close()
            os.setsid()
            for target, stream in enumerate(streams):
                os.dup2(stream, target)
                os.close(stream)
            with os.fdopen(file) as text:
                text.seek(0)
                request: dict[str, Any] = json.load(text)
            return request
        for each in passed:
            os.close(each)
        self._lines[pid] = line
        self._send(line, pid)
        return None

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            line = self._lines.pop(pid, None)
            if line:
                self._send(line, os.waitstatus_to_exitcode(status))
                line.close()

    @staticmethod
    def _send(line: socket.socket, number: int) -> None:
        try:
            line.send(str(number).encode())
        except OSError:  # the client is gone; its fork is killed when that is read
            pass


def become(executable: str, request: dict[str, Any]) -> None:
    """In a fork: does what Python does with these arguments."""
    import ctypes
    import itertools
    import runpy
    import tempfile
    import types

    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    tempfile.tempdir = None  # $TMPDIR may be another one
    os.environ[VARIABLE] = sys.executable = executable
    if "PYTHONUNBUFFERED" in os.environ:
        sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    arguments: list[str] = request["arguments"]
    flags = list(itertools.takewhile(FLAGS.__contains__, arguments))
    safe = "-P" in flags
    what, *others = arguments[len(flags) :]
    if what == "-m":
        sys.argv = others
        sys.path[:0] = [] if safe else [os.getcwd()]
        runpy.run_module(others[0], run_name="__main__", alter_sys=True)
        return
    if what == "-c":
        source, name, *others = others[0], "<string>", *others[1:]
    else:
        with open(what, encoding="utf-8") as file:
            source, name = file.read(), what
    sys.argv = [what, *others]
    sys.path[:0] = [] if safe else [os.path.dirname(os.path.abspath(name)) if what != "-c" else ""]
    module = sys.modules["__main__"] = types.ModuleType("__main__")
    module.__file__ = name
    exec(compile(source, name, "exec"), module.__dict__)


def end(error: BaseException | None) -> NoReturn:
    """Ends a fork as Python does, but does not take a whole TensorFlow apart."""
    import atexit
    import threading
    import traceback

    status = 0
    if isinstance(error, SystemExit):
        status = error.code if isinstance(error.code, int) else error.code is not None
        if error.code is not None and not isinstance(error.code, int):
            print(error.code, file=sys.stderr)
    elif error:
        traceback.print_exception(error)
        status = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def main() -> None:
    what, address, *arguments = sys.argv[1:]
    if what == "run":
        run(address, arguments)
    del sys.path[0]  # of this file
    import gc

    gc.disable()  # what is imported stays
    import tensorflow

    import rdmatensor.tensorflow  # noqa: F401

    tensorflow.keras.Model  # noqa: B018 (loads Keras 2 if that is asked for)
    # Up to a sixth of the time in which a model is traced went into looking for garbage that there is not.
    gc.freeze()
    gc.set_threshold(COLLECT_AFTER)
    gc.enable()

    server = Server(address)
    os.write(1, b"ready\n")
    request = server.serve()
    if request:
        del server
        try:
            become(arguments[0], request)
        except BaseException as error:
            end(error)
        end(None)


if __name__ == "__main__":
    main()

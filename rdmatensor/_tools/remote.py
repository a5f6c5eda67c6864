# SPDX-License-Identifier: Apache-2.0
"""Tasks on other hosts: the launcher's end of the connection, and the agent, this file as a program.

The launcher starts the agent with ssh, or another command of that kind, and sends it one line of JSON:
program, folder, variables, secret, grace. The agent runs the program. A second line makes it send SIGTERM,
and SIGKILL after the grace. It ends the program sooner when its own standard input ends, which happens
however the launcher or the connection dies. Two lines on its standard error say that it has begun, and how
the program ended. So a program's failure can be told from that of the connection.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shlex
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .._api.secret import secret_file
from .processes import Crew, Process, terminate

# A host that is gone, or a connection that is cut, ends ssh within half a minute.
SSH = "ssh -o BatchMode=yes -o ConnectTimeout=20 -o ServerAliveInterval=10 -o ServerAliveCountMax=3"
_MARK = b"\x01rdmatensor-agent "
_BEGUN = "begun"
# These describe the launcher's machine and login. All other variables are carried.
_LOCAL = {
    *("HOME", "HOSTNAME", "LOGNAME", "MAIL", "OLDPWD", "PWD"),
    *("SHELL", "SHLVL", "TMPDIR", "USER", "_"),
}
_LOCAL_PREFIXES = ("DBUS_", "DISPLAY", "SSH_", "SUDO_", "XAUTHORITY", "XDG_")


@dataclass(frozen=True)
class Host:
    """A machine: its `name` for ssh, which may be user@host, and its `address` for the other tasks."""

    name: str
    address: str


def parse_hosts(text: str) -> list[Host]:
    """Read "NAME,NAME=ADDRESS,...". The default address is the name without the user.

    Raises ValueError if the text is something else.
    """
    hosts = []
    for word in text.split(","):
        name, _, address = word.strip().partition("=")
        if not name or name.startswith("-"):
            raise ValueError(f"{word!r} is not NAME or NAME=ADDRESS")
        hosts.append(Host(name, address or name.rpartition("@")[2]))
    return hosts


def parse_slots(text: str) -> list[Host]:
    """Read "HOST:N,HOST:N,...", and return each host N times, or once without N.

    Raises ValueError if the text is something else, or names this machine beside others as localhost.
    """
    found: list[Host] = []
    for word in text.split(","):
        name, colon, count = word.strip().rpartition(":")
        if not colon:
            name, count = count, "1"
        if not count.isdecimal() or int(count) < 1:
            raise ValueError(f"{word!r} is not HOST:N")
        found += parse_hosts(name) * int(count)
    local = [each.name in ("localhost", "127.0.0.1") for each in found]
    if any(local) and not all(local):
        raise ValueError("name this machine by an address that the other hosts know, not localhost")
    return found


def slots_in(text: str) -> str:
    """Return what parse_slots reads, from lines "HOST slots=N" with comments that "#" begins."""
    lines = (line.partition("#")[0].split() for line in text.splitlines())
    found = []
    for name, *settings in filter(None, lines):
        counts = [each.removeprefix("slots=") for each in settings if each.startswith("slots=")]
        found.append(f"{name}:{counts[0]}" if counts else name)
    return ",".join(found)


def command(ssh: str, host: Host, python: str) -> list[str]:
    """Return the command that runs the agent on a host."""
    return [*shlex.split(ssh), host.name, shlex.quote(python), "-m", "rdmatensor._tools.remote"]


# The second line, as long as the connection lasts.
END = b"\n"


def order(
    arguments: Sequence[str], variables: Mapping[str, str], secret: str, grace: float
) -> bytes:
    """Return the line that tells the agent to run this Python program as here, with `variables` besides."""
    carried = {
        name: value
        for name, value in os.environ.items()
        if name not in _LOCAL and not name.startswith(_LOCAL_PREFIXES)
    }
    fields = {
        "arguments": list(arguments),
        "folder": str(Path.cwd()),
        "variables": carried | dict(variables),
        "secret": secret,
        "grace": grace,
    }
    return json.dumps(fields).encode() + b"\n"


class Connection:
    """What the agent's standard error has told about the connection and the program."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._begun = False
        self._status: int | None = None
        self._last = ""

    def read(self, line: bytes) -> bytes:
        """Take a line of standard error, and return what of it is for the user."""
        before, mark, said = line.partition(_MARK)
        if mark and (word := said.strip().decode()) == _BEGUN:
            self._begun = True
        elif mark:
            self._status = int(word)
        elif before.strip():
            self._last = before.decode(errors="replace").strip()
        return before

    def outcome(self, status: int) -> tuple[int, str]:
        """Return the program's exit status, and what is wrong with the host or "", once ssh ended with
        `status`.
        """
        if self._status is not None:
            return self._status, ""
        if self._begun:
            return status or 1, f"the connection to {self._host.name} was lost"
        why = f": {self._last}" if self._last else ""
        return status or 1, f"{self._host.name} cannot be reached, or has no rdmatensor{why}"


def _end_with_input(crew: Crew, process: Process, grace: float) -> None:
    # A buffered reader would keep its lock beyond the interpreter's end.
    if not os.read(0, 1):
        crew.stop()
        return
    terminate(process)
    select.select([0], [], [], grace)  # the end of the input hurries
    crew.stop(grace=0)


def _tell(what: object) -> None:
    with contextlib.suppress(OSError):
        os.write(2, _MARK + f"{what}\n".encode())


def _run(asked: Mapping[str, Any]) -> int:
    with Crew() as crew, contextlib.ExitStack() as kept:
        variables = {}
        if asked["secret"]:
            variables["RDMATENSOR_SECRET_FILE"] = kept.enter_context(secret_file(asked["secret"]))
        try:
            os.chdir(asked["folder"])
            process = crew.start(
                asked["arguments"], asked["variables"] | variables, stderr=2, stdout=1
            )
        except OSError as error:
            sys.stderr.write(f"rdmatensor launch: {error}\n")
            return 1
        assert process.stdin is not None
        process.stdin.close()
        arguments = crew, process, asked["grace"]
        threading.Thread(target=_end_with_input, args=arguments, daemon=True).start()
        return crew.wait(process)


def main() -> None:
    """Run what one line of standard input says, to its end."""
    _tell(_BEGUN)
    with open(0, "rb", buffering=0, closefd=False) as unread:  # what follows is for another thread
        status = _run(json.loads(unread.readline()))
    sys.stderr.flush()
    _tell(status)
    os._exit(0)


if __name__ == "__main__":
    main()

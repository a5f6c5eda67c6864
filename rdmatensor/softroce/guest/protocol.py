# SPDX-License-Identifier: Apache-2.0
"""Frames between the lab and a guest's agent, which share one virtio-serial port.

A frame is a header of 9 bytes (length of the payload, kind, process number; little-endian) and the payload.
The agent imports this file on an emulated processor, so it must not import anything.
"""

from __future__ import annotations

HEADER_BYTES = 9
# Neither side sends a longer payload, so a greater length means a broken stream.
MAX_PAYLOAD = 1 << 20

# Sent by the lab.
START = 1  # payload: see pack_start
STDIN = 2  # bytes for the process; an empty payload means end of file
SIGNAL = 3  # decimal signal number, for the process only
SIGNAL_GROUP = 4  # decimal signal number, for the process and its children
RESIZE = 5  # "rows columns" of the terminal
QUIT = 6  # sync file systems, then answer BYE

# Sent by the agent.
READY = 65
STDOUT = 67
STDERR = 68
EXIT = 69  # decimal exit status, negative if a signal ended it
BYE = 70


class BrokenStream(Exception):
    """The stream contains something that is not a frame."""


def pack(kind: int, number: int = 0, payload: bytes = b"") -> bytes:
    """Pack one frame. The payload has at most MAX_PAYLOAD bytes."""
    header = len(payload).to_bytes(4, "little") + bytes([kind]) + number.to_bytes(4, "little")
    return header + payload


class Parser:
    """A parser that splits a byte stream into frames. Not thread-safe."""

    def __init__(self) -> None:
        self._pending = bytearray()

    def feed(self, data: bytes) -> list[tuple[int, int, bytes]]:
        """Return the frames (kind, number, payload) that `data` completes.

        Raises BrokenStream if a length is too great.
        """
        pending = self._pending
        pending += data
        frames = []
        at = 0
        while len(pending) - at >= HEADER_BYTES:
            length = int.from_bytes(pending[at : at + 4], "little")
            if length > MAX_PAYLOAD:
                raise BrokenStream(f"a frame of {length} bytes")
            end = at + HEADER_BYTES + length
            if len(pending) < end:
                break
            number = int.from_bytes(pending[at + 5 : at + 9], "little")
            frames.append((pending[at + 4], number, bytes(pending[at + HEADER_BYTES : end])))
            at = end
        del pending[:at]
        return frames


def pack_start(argv: list[str], env: dict[str, str], cwd: str, terminal: str) -> bytes:
    """Pack the payload of START. `terminal` is "rows columns", or "" for pipes.

    NUL separates the strings, because no argument, path or variable can contain it.
    """
    fields = [cwd, terminal, str(len(argv)), *argv, *(f"{k}={v}" for k, v in env.items())]
    return "\0".join(fields).encode("utf-8", "surrogateescape")


def unpack_start(payload: bytes) -> tuple[list[str], dict[str, str], str, str]:
    """Unpack what pack_start() has packed."""
    cwd, terminal, count, *rest = payload.decode("utf-8", "surrogateescape").split("\0")
    argv, variables = rest[: int(count)], rest[int(count) :]
    env = dict(variable.split("=", 1) for variable in variables)
    return argv, env, cwd, terminal

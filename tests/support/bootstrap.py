# SPDX-License-Identifier: Apache-2.0
"""The bootstrap protocol in Python, from docs/protocol.md: for peers that share no code, and lie.

Also runs in guests of the lab, with the distribution's interpreter.
"""

from __future__ import annotations

import hmac
import os
import socket
import struct
from collections.abc import Sequence
from typing import Any

VERSION = 5
HELLO, ATTACH, FIND, ALLOC, REGION, REFUSAL, GOODBYE, READY = range(1, 9)
HEADER = struct.Struct("<4sHHII")
NONCE = 32
CONNECTING, LISTENING = (f"rdmatensor 4 {side}".encode() for side in ("connecting", "listening"))
PATIENCE = 20.0


class Refused(Exception):
    """The other device answered with a refusal: status and text."""


def text(value: str | bytes) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return struct.pack("<I", len(data)) + data


def message(kind: int, body: bytes = b"", sequence: int = 0) -> bytes:
    return HEADER.pack(b"RDT1", VERSION, kind, len(body), sequence) + body


def proof(secret: bytes, side: bytes, said: Sequence[bytes], body: bytes) -> bytes:
    """That the messages and the body of an ATTACH before its proof come from who has the secret."""
    return hmac.digest(secret, b"".join(said) + body + side.ljust(32, b"\0"), "sha256")


class Reader:
    """Takes fields off a message."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def take(self, size: int) -> bytes:
        taken, self._data = self._data[:size], self._data[size:]
        if len(taken) < size:
            raise ValueError("the message is too short")
        return taken

    def u32(self) -> int:
        return int.from_bytes(self.take(4), "little")

    def u64(self) -> int:
        return int.from_bytes(self.take(8), "little")

    def text(self) -> bytes:
        return self.take(self.u32())

    def end(self) -> None:
        if self._data:
            raise ValueError(f"{len(self._data)} bytes too many")


class Line:
    """A connection to a device: over TCP to "host:port", else to the unix socket of that name."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self.packets = not host
        if host:
            self.socket = socket.create_connection((host, int(port)), timeout=PATIENCE)
        else:
            self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            # A full backlog makes connect() wait only if the socket blocks, which one with a
            # timeout of Python's does not.
            patience = struct.pack("ll", int(PATIENCE), 0)
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, patience)
            self.socket.connect(address if address.startswith("/") else b"\0" + address.encode())
            self.socket.settimeout(PATIENCE)

    def send(self, kind: int, body: bytes = b"", sequence: int = 0) -> None:
        self.socket.sendall(message(kind, body, sequence))

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            more = self.socket.recv(size - len(data))
            if not more:
                raise EOFError("the device hung up")
            data += more
        return data

    def receive_whole(self) -> bytes:
        """A message with its header. EOFError."""
        if self.packets:
            data = self.socket.recv(4096)  # descriptors that come along are not ours to keep
            if not data:
                raise EOFError("the device hung up")
            return data
        header = self._exactly(HEADER.size)
        return header + self._exactly(HEADER.unpack(header)[3])

    def receive(self) -> tuple[int, int, Reader]:
        """Type, sequence, body. Refused, EOFError."""
        return opened(self.receive_whole())

    def close(self) -> None:
        self.socket.close()


def opened(data: bytes) -> tuple[int, int, Reader]:
    magic, version, kind, size, sequence = HEADER.unpack(data[: HEADER.size])
    assert (magic, version, size) == (b"RDT1", VERSION, len(data) - HEADER.size)
    body = Reader(data[HEADER.size :])
    if kind == REFUSAL:
        raise Refused(body.u32() - (1 << 32), body.text().decode())
    return kind, sequence, body


def pack_hello(fields: dict[str, Any]) -> bytes:
    names = ("name", "address", "host_id", "local_name", "transports")
    return (
        b"".join(text(fields[name]) for name in names)
        + struct.pack("<Q", fields["generation"])
        + text(fields["nonce"])
        + struct.pack("<I", fields["has_secret"])
    )


def unpack_hello(body: Reader) -> dict[str, Any]:
    names = ("name", "address", "host_id", "local_name", "transports")
    fields: dict[str, Any] = {name: body.text().decode() for name in names}
    fields.update(generation=body.u64(), nonce=body.text(), has_secret=body.u32())
    body.end()
    return fields


class Meeting:
    """The connecting side of a connection until it is a channel."""

    def __init__(self, line: Line, secret: bytes = b"", **fields: Any) -> None:
        """`fields` replace those of our HELLO."""
        self.line = line
        self.secret = secret
        self.said: list[bytes] = []
        self.theirs: dict[str, Any] = {}
        self._fields = {
            "name": "independent",
            "address": "127.0.0.1:9",
            "host_id": "another-host",
            "local_name": "",
            "transports": "verbs",
            "generation": 42,
            "nonce": os.urandom(NONCE),
            "has_secret": bool(secret),
            **fields,
        }

    def hello(self) -> dict[str, Any]:
        """Says ours, returns theirs."""
        self._say(message(HELLO, pack_hello(self._fields)))
        answer = self._hear()
        kind, _, body = opened(answer)
        assert kind == HELLO
        self.theirs = unpack_hello(body)
        return self.theirs

    def attach_message(
        self, transport: str, bundle: bytes, purpose: int = 0, given: bytes | None = None
    ) -> bytes:
        """`given` is sent as the proof instead of the right one."""
        body = text(transport) + text(bundle) + struct.pack("<I", purpose)
        if given is None:
            given = proof(self.secret, CONNECTING, self.said, body) if self.secret else b""
        return message(ATTACH, body + text(given))

    def attach(self, transport: str, bundle: bytes, **how: Any) -> bytes:
        """Says it; the device's bundle. AssertionError if its proof is wrong."""
        self._say(self.attach_message(transport, bundle, **how))
        return self.answer()

    def answer(self) -> bytes:
        data = self.line.receive_whole()
        kind, _, body = opened(data)
        assert kind == ATTACH
        body.text()
        theirs = body.text()
        body.u32()
        given = body.text()
        body.end()
        unproven = data[HEADER.size : len(data) - 4 - len(given)]
        wanted = proof(self.secret, LISTENING, self.said, unproven) if self.secret else b""
        assert hmac.compare_digest(given, wanted), "the device's proof is wrong"
        return theirs

    def _say(self, data: bytes) -> None:
        self.line.socket.sendall(data)
        self.said.append(data)

    def _hear(self) -> bytes:
        data = self.line.receive_whole()
        self.said.append(data)
        return data

# SPDX-License-Identifier: Apache-2.0
"""A peer that shares no code with rdmatensor: its protocol in Python, its verbs by pyverbs.

Written from docs/protocol.md, as tests/support/bootstrap.py is; runs in a guest, with the interpreter that
Debian's pyverbs is built for.
It can lie: every field of its verbs address can be replaced, and every number it announces.
"""

from __future__ import annotations

import os
import socket
import struct
import time
from pathlib import Path
from typing import Any, NamedTuple

import pyverbs.enums as e
from pyverbs.addr import GID, AHAttr, GlobalRoute
from pyverbs.cq import CQ
from pyverbs.device import Context
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import SGE, RecvWR, SendWR

from support.bootstrap import ALLOC, FIND, READY, REGION, Line, Meeting, Reader, text

RECORD = struct.Struct("<IIQ")
MESSAGE, PADDING = 1, 2
GID_INDEX = 1  # RoCE v2, IPv4
ROCE_V2 = 2
ATOMIC_HCA = 1
PAGE = 4096
RING = 65536
RECEIVES = 104
CREDIT_RECEIVES = 8
PSN = 0x123456
RECEIVE = 7  # as identity of work requests; sends have 0
STATUS = {e.IBV_WC_SUCCESS: "SUCCESS", e.IBV_WC_REM_ACCESS_ERR: "REM_ACCESS_ERR"}


class Region(NamedTuple):
    """One of theirs, or of ours."""

    address: int
    rkey: int
    size: int
    access: int


def unpack_address(data: bytes) -> dict[str, Any]:
    fields = Reader(data)
    result: dict[str, Any] = {
        name: fields.u32() for name in ("link_layer", "mtu", "lid", "gid_type")
    }
    result["gid"] = fields.text()
    result.update({name: fields.u32() for name in ("reads", "atomics", "notifies")})
    result.update({name: fields.u64() for name in ("ring", "ring_capacity", "credit")})
    result["rkey"] = fields.u32()
    result["queues"] = [(fields.u32(), fields.u32()) for _ in range(fields.u32())]
    fields.end()
    return result


def pack_address(fields: dict[str, Any]) -> bytes:
    data = struct.pack("<4I", *(fields[name] for name in ("link_layer", "mtu", "lid", "gid_type")))
    data += text(fields["gid"])
    data += struct.pack("<3I", *(fields[name] for name in ("reads", "atomics", "notifies")))
    data += struct.pack("<3Q", *(fields[name] for name in ("ring", "ring_capacity", "credit")))
    data += struct.pack("<2I", fields["rkey"], fields.get("queue_count", len(fields["queues"])))
    return data + b"".join(struct.pack("<2I", *queue) for queue in fields["queues"])


def lab_secret() -> bytes:
    """What this guest's devices know each other by."""
    return Path(os.environ["RDMATENSOR_SECRET_FILE"]).read_bytes().rstrip()


class Independent:
    """A connection to a device of rdmatensor. Further keyword arguments replace fields of our address."""

    def __init__(self, address: str, secret: bytes | None = None, **lies: Any) -> None:
        self._line = Line(address)
        self._context = Context(name="rxe0")
        self._pd = PD(self._context)
        self._cq = CQ(self._context, 512)
        peers = e.IBV_ACCESS_REMOTE_WRITE | e.IBV_ACCESS_REMOTE_READ | e.IBV_ACCESS_REMOTE_ATOMIC
        everything = e.IBV_ACCESS_LOCAL_WRITE | peers
        self.memory = MR(self._pd, PAGE + RING + (1 << 20), everything)
        self._data = self.memory.buf + PAGE + RING  # what we write from, read into, and export
        self._sent = self._messages = 0  # bytes of records, notifications
        self._learned = self._consumed = 0  # bytes in our ring
        self._announced: list[int] = []
        self._qp = self._queue_pair()
        for _ in range(RECEIVES + CREDIT_RECEIVES):
            self._post_receive()
        self._meeting = Meeting(self._line, lab_secret() if secret is None else secret)
        self.name = self._meeting.hello()["name"]
        self._attach(lies)

    # Connecting.

    def _queue_pair(self) -> QP:
        cap = QPCap(max_send_wr=256, max_recv_wr=256, max_send_sge=1, max_recv_sge=1)
        init = QPInitAttr(qp_type=e.IBV_QPT_RC, scq=self._cq, rcq=self._cq, cap=cap, sq_sig_all=1)
        attr = QPAttr(port_num=1)
        attr.qp_access_flags = (
            e.IBV_ACCESS_REMOTE_WRITE | e.IBV_ACCESS_REMOTE_READ | e.IBV_ACCESS_REMOTE_ATOMIC
        )
        return QP(self._pd, init, attr)

    def _post_receive(self) -> None:
        unused = SGE(self._data, 16, self.memory.lkey)  # pyverbs wants one
        self._qp.post_recv(RecvWR(wr_id=RECEIVE, num_sge=1, sg=[unused]))

    def _address(self) -> dict[str, Any]:
        gid = self._context.query_gid(1, GID_INDEX).gid
        return {
            "link_layer": e.IBV_LINK_LAYER_ETHERNET,
            "mtu": e.IBV_MTU_4096,
            "lid": 0,
            "gid_type": ROCE_V2,
            "gid": bytes.fromhex(gid.replace(":", "")),
            "reads": 16,
            "atomics": ATOMIC_HCA,
            "notifies": RECEIVES,
            "ring": self.memory.buf + PAGE,
            "ring_capacity": RING,
            "credit": self.memory.buf,
            "rkey": self.memory.rkey,
            "queues": [(self._qp.qp_num, PSN)],
        }

    def _attach(self, lies: dict[str, Any]) -> None:
        offer = pack_address({**self._address(), **lies})
        self.theirs = unpack_address(self._meeting.attach("verbs", offer))
        self._to_rts()
        self._line.send(READY)

    def _to_rts(self) -> None:
        octets = self.theirs["gid"].hex()
        gid = ":".join(octets[i : i + 4] for i in range(0, 32, 4))
        route = GlobalRoute(dgid=GID(gid), sgid_index=GID_INDEX, hop_limit=64)
        attr = QPAttr(port_num=1)
        attr.dest_qp_num, attr.rq_psn = self.theirs["queues"][0]
        attr.path_mtu = min(self.theirs["mtu"], e.IBV_MTU_4096)
        attr.max_dest_rd_atomic = attr.max_rd_atomic = 16
        attr.min_rnr_timer = 14
        attr.ah_attr = AHAttr(gr=route, is_global=1, port_num=1)
        attr.timeout, attr.retry_cnt, attr.rnr_retry, attr.sq_psn = 14, 6, 6, PSN
        self._qp.to_rts(attr)

    # One-sided.

    def _post(
        self, opcode: int, size: int, address: int, rkey: int, imm: int = 0, at: int = 0
    ) -> None:
        segments = [SGE(at or self._data, size, self.memory.lkey)] if size else []
        request = SendWR(
            opcode=opcode,
            num_sge=len(segments),
            imm_data=socket.htonl(imm),
            sg=segments,
            send_flags=e.IBV_SEND_SIGNALED | e.IBV_SEND_SOLICITED,
        )
        request.set_wr_rdma(rkey, address)
        self._qp.post_send(request)

    def _poll(self) -> str | None:
        """Takes one completion; of a send, its status. What was received is kept for take()."""
        count, completions = self._cq.poll(1)
        if count == 0:
            time.sleep(0.001)
            return None
        wc = completions[0]
        if wc.wr_id != RECEIVE:
            return STATUS.get(wc.status, f"status {wc.status}")
        if wc.status == e.IBV_WC_SUCCESS:
            self._announced.append(socket.ntohl(wc.imm_data))
            self._post_receive()
        return None

    def _completion(self, seconds: float = 20) -> str:
        """The status of the next send."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            status = self._poll()
            if status:
                return status
        raise TimeoutError("no completion")

    def write(self, data: bytes, region: Region, offset: int = 0, rkey: int | None = None) -> str:
        """The work completion's status, as a word."""
        self.memory.write(data, len(data), PAGE + RING)
        key = region.rkey if rkey is None else rkey
        self._post(e.IBV_WR_RDMA_WRITE, len(data), region.address + offset, key)
        return self._completion()

    def read(self, size: int, region: Region, offset: int = 0, rkey: int | None = None) -> Any:
        """The bytes, or the status of a work completion that failed."""
        key = region.rkey if rkey is None else rkey
        self._post(e.IBV_WR_RDMA_READ, size, region.address + offset, key)
        status = self._completion()
        return self.memory.read(size, PAGE + RING) if status == "SUCCESS" else status

    # Regions.

    def find(self, name: str) -> Region:
        self._line.send(FIND, struct.pack("<Q", 0) + text(name), sequence=9)
        return self._described()

    def allocate(self, size: int) -> Region:
        self._line.send(ALLOC, struct.pack("<QI", size, 3), sequence=9)
        return self._described()

    def _described(self) -> Region:
        kind, sequence, body = self._line.receive()
        assert (kind, sequence) == (REGION, 9)
        body.u64()
        size, access, self.takes_atomics = body.u64(), body.u32(), body.u32() == 0
        bundle = Reader(body.text())
        body.end()
        region = Region(bundle.u64(), bundle.u32(), size, access)
        bundle.end()
        return region

    def answer_find(self, size: int, rkey: int | None = None) -> None:
        """Waits to be asked for a region and exports the first `size` bytes of our data."""
        kind, sequence, body = self._line.receive()
        assert kind == FIND
        body.u64()
        body.text()
        body.end()
        key = self.memory.rkey if rkey is None else rkey
        bundle = struct.pack("<QI", self._data, key)
        self._line.send(REGION, struct.pack("<QQ2I", 77, size, 3, 0) + text(bundle), sequence)

    def data(self, size: int) -> bytes:
        return bytes(self.memory.read(size, PAGE + RING))

    # Notifications.

    def records(self, payloads: list[bytes], immediate: int = 0, kind: int = MESSAGE) -> bytes:
        """As they lie in a ring."""
        parts = []
        for payload in payloads:
            record = RECORD.pack(len(payload), kind, immediate) + payload
            parts.append(record + bytes(-len(record) % 16))
        return b"".join(parts)

    def put(self, data: bytes, announced: int | None = None, at: int | None = None) -> str:
        """Writes bytes into their ring, behind those before, and announces them."""
        place = self._sent % self.theirs["ring_capacity"] if at is None else at
        self.memory.write(data, len(data), PAGE + RING)
        imm = len(data) if announced is None else announced
        address = self.theirs["ring"] + place
        self._post(e.IBV_WR_RDMA_WRITE_WITH_IMM, len(data), address, self.theirs["rkey"], imm)
        self._sent += len(data)
        self._messages += 1
        return self._completion()

    def notify(self, payload: bytes, immediate: int = 0) -> str:
        """Waits for credit first."""
        while self._messages - self.credit()[1] >= self.theirs["notifies"]:
            self._poll()
        return self.put(self.records([payload], immediate))

    def credit(self) -> tuple[int, int]:
        """What they say they have taken: bytes and messages."""
        consumed, receives = struct.unpack("<2Q", self.memory.read(16, 0))
        return consumed, receives

    def give_credit(self, consumed: int, receives: int) -> str:
        data = struct.pack("<2Q", consumed, receives)
        self.memory.write(data, len(data), PAGE + RING)
        address, rkey = self.theirs["credit"], self.theirs["rkey"]
        self._post(e.IBV_WR_RDMA_WRITE_WITH_IMM, len(data), address, rkey)
        return self._completion()

    def take(self, seconds: float = 20) -> tuple[int, bytes]:
        """The next notification from them: immediate and payload."""
        end = time.monotonic() + seconds
        while self._learned < self._consumed + RECORD.size:
            if self._announced:
                self._learned += self._announced.pop(0)  # credit announces nothing
            elif time.monotonic() > end:
                raise TimeoutError("no notification")
            else:
                self._poll()
        at = self._consumed % RING
        size, kind, immediate = RECORD.unpack(self.memory.read(RECORD.size, PAGE + at))
        assert kind == MESSAGE
        payload = bytes(self.memory.read(size, PAGE + at + RECORD.size)) if size else b""
        self._consumed += (RECORD.size + size + 15) // 16 * 16
        return immediate, payload

    def hung_up(self, seconds: float = 20) -> bool:
        """Whether the device ends the connection."""
        self._line.socket.settimeout(seconds)
        try:
            while True:
                self._line.receive()
        except (EOFError, ConnectionError):
            return True
        except TimeoutError:
            return False

    def say(self, kind: int, body: bytes) -> None:
        """Any control message."""
        self._line.send(kind, body)

    def close(self) -> None:
        self._line.close()
        for resource in (self._qp, self._cq, self.memory, self._pd, self._context):
            resource.close()

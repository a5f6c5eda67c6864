# SPDX-License-Identifier: Apache-2.0
"""A program for test_library.py: two processes call the MPI as XLA does, and as it never does."""

from __future__ import annotations

import ctypes
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

import rdmatensor
from rdmatensor._ffi import ffi
from rdmatensor._tools.roles import device_of, join, role_of

MPI = ctypes.CDLL(str(Path(rdmatensor.__file__).with_name("librdmatensor_mpi.so")))
TIMEOUT_S = 5.0


def value(name: str) -> int:
    return int(ctypes.c_int64.in_dll(MPI, f"MPIABI_{name}").value)


WORLD, FLOAT, COMPLEX, SUM, PROD = map(value, ("COMM_WORLD", "FLOAT", "C_COMPLEX", "SUM", "PROD"))


def word(number: int = 0) -> ctypes.c_size_t:
    return ctypes.c_size_t(number)


def call(name: str, *arguments: object) -> str:
    """The text of the failure; "" if there is none."""
    given = [
        each.ctypes.data_as(ctypes.c_void_p) if isinstance(each, np.ndarray) else each
        for each in arguments
    ]
    error = getattr(MPI, f"MPIABI_{name}")(*given)
    text, length = ctypes.create_string_buffer(1024), ctypes.c_int()
    MPI.MPIABI_Error_string(error, text, ctypes.byref(length))
    assert length.value == len(text.value) < 1024
    return text.value.decode() if error else ""


def fails(name: str, *arguments: object, text: str) -> None:
    got = call(name, *arguments)
    assert text in got and f"MPI_{name}" in got, got


def ask(name: str, comm: ctypes.c_size_t) -> int:
    answer = ctypes.c_int(-1)
    call(name, comm, ctypes.byref(answer))
    return answer.value


def split(color: int, key: int) -> tuple[ctypes.c_size_t, str]:
    comm = word()
    return comm, call("Comm_split", word(WORLD), color, key, ctypes.byref(comm))


def before() -> None:
    """Without a group, operations say what is missing."""
    x = np.ones(2, np.float32)
    comm, text = split(0, 0)
    assert comm.value and "rdmatensor.jax.use() was not called" in text
    fails(
        "Allreduce",
        x,
        x,
        2,
        word(FLOAT),
        word(SUM),
        comm,
        text="rdmatensor.jax.use() was not called",
    )
    assert ask("Comm_size", comm) == 1
    assert call("Comm_free", ctypes.byref(comm)) == "" and comm.value == 0
    fails("Bcast", text="this MPI has no MPI_Bcast")


def messages(comm: ctypes.c_size_t, rank: int) -> None:
    other, kind, request = 1 - rank, word(FLOAT), word()
    sent, received = np.full(100_000, rank, np.float32), np.full(100_000, 7, np.float32)
    # Two of one tag come in order.
    for number in range(2):
        sent[0] = number
        requests = (ctypes.c_size_t * 2)()
        slots = [ctypes.byref(requests, 8 * i) for i in range(2)]
        assert call("Irecv", received, sent.size, kind, other, 0, comm, slots[0]) == ""
        assert call("Isend", sent, sent.size, kind, other, 0, comm, slots[1]) == ""
        assert call("Waitall", 2, requests, None) == "" and list(requests) == [0, 0]
        assert received[0] == number and (received[1:] == other).all()
    swap = (sent, 10, kind, other, 3, received, 10, kind, other, 3, comm, None)
    assert call("Sendrecv", *swap) == "" and received[1] == other
    fails(
        "Isend",
        sent,
        1,
        kind,
        9,
        0,
        comm,
        ctypes.byref(request),
        text="9 is no other member: there are 2",
    )
    fails("Isend", sent, 1, kind, other, -1, comm, ctypes.byref(request), text="the tag -1")
    # A failure ends what the thread has begun, so that nothing comes into a buffer that XLA has freed.
    received[:] = 7
    assert call("Irecv", received, 100, kind, other, 5, comm, ctypes.byref(request)) == ""
    fails("Isend", sent, 1, kind, 9, 0, comm, ctypes.byref(word()), text="9 is no other member")
    fails("Wait", ctypes.byref(request), None, text="the request does not exist")
    both = ("Allreduce", sent, np.empty_like(sent), 9, kind, word(SUM), comm)
    assert call(*both) == ""  # both have given it up
    assert call("Isend", sent, 100, kind, other, 5, comm, ctypes.byref(request)) == ""
    assert call(*both) == ""  # both have sent
    assert (received == 7).all()
    assert call("Irecv", received, 100, kind, other, 5, comm, ctypes.byref(word())) == ""
    assert call("Wait", ctypes.byref(request), None) == ""


def threads(rank: int) -> None:
    """Each of several threads makes, uses and frees communicators, as programs of XLA do."""
    comms = [split(0, rank)[0] for _ in range(4)]

    def sums(number: int) -> bool:
        comm, right = comms[number], True
        for k in range(100):
            x, y = np.full(50 * k, number + rank, np.float32), np.zeros(50 * k, np.float32)
            failure = call("Allreduce", x, y, x.size, word(FLOAT), word(SUM), comm)
            right = right and failure == "" and bool((y == 2 * number + 1).all())
        return right and call("Comm_free", ctypes.byref(comm)) == ""

    with ThreadPoolExecutor(len(comms)) as pool:
        assert all(pool.map(sums, range(len(comms))))


def programs(rank: int) -> None:
    """A program of one process, of which the other one knows nothing; then one of both, in another order."""

    def announce(*numbers: int) -> int:
        return int(MPI.rdt_mpi_program((ctypes.c_int32 * len(numbers))(*numbers), len(numbers)))

    x, y = np.full(4, rank + 1, np.float32), np.zeros(4, np.float32)
    for wrong in ([7], [7, 0], [7, -1, 0], [7, 2, 0], [7, 1, 2], [7, 1, 0, 8]):
        assert announce(*wrong) < 0
    alone, together = (100, 1, rank), (101, 2, 1, 0)
    cliques = [alone, together] if rank else [together]
    assert announce(*(number for each in cliques for number in each)) == 0
    for color, size, *ranks in cliques:
        comm, text = split(color, ranks.index(rank))
        assert text == "" and ask("Comm_size", comm) == size
        assert call("Allreduce", x, y, 4, word(FLOAT), word(SUM), comm) == ""
        assert (y == sum(each + 1 for each in ranks)).all()
        again, text = split(color, ranks.index(rank))  # XLA has it
        assert f"the first one with number {color}, that concern no program" in text
        assert call("Comm_free", ctypes.byref(again)) == ""


def refusals(comm: ctypes.c_size_t) -> None:
    x, y = np.ones(4, np.float32), np.empty(4, np.float32)
    reduce = ("Allreduce", x, y)
    fails(*reduce, -1, word(FLOAT), word(SUM), comm, text="more than 2147483647")
    fails(*reduce, 2, word(COMPLEX), word(PROD), comm, text="complex numbers can only be added up")
    fails(*reduce, 2, word(value("LONG_DOUBLE")), word(SUM), comm, text="datatype")
    fails(*reduce, 2, word(FLOAT), word(value("BAND")), comm, text="reduction")
    fails(*reduce, 2, word(FLOAT), word(SUM), word(12345), text="the communicator does not exist")
    in_place = word(value("IN_PLACE") % 2**64)
    fails("Allreduce", in_place, y, 2, word(FLOAT), word(SUM), comm, text="MPI_IN_PLACE")
    counts = np.array([2, 1], np.int32)
    fails("Reduce_scatter", x, y, counts, word(FLOAT), word(SUM), comm, text="equally many")


def main() -> None:
    before()
    role = role_of(os.environ, None, None, None)
    with device_of(role) as device:
        group = join(device, role, "jax", 60)
        handle = ctypes.c_void_p(int(ffi.cast("uintptr_t", group._calls.handle())))
        assert MPI.rdt_mpi_begin(handle, 0) < 0
        assert MPI.rdt_mpi_begin(handle, int(1000 * TIMEOUT_S)) == 0
        assert MPI.rdt_mpi_begin(handle, 1000) < 0
        comm, text = split(0, 1 - role.rank)  # in the other order
        assert (
            text == "" and ask("Comm_size", comm) == 2 and ask("Comm_rank", comm) == 1 - role.rank
        )
        messages(comm, 1 - role.rank)
        refusals(comm)
        threads(role.rank)
        alone, text = split(role.rank, 0)
        x, y = np.arange(4, dtype=np.float32), np.zeros(4, np.float32)
        assert text == "" and ask("Comm_size", alone) == 1
        assert call("Allreduce", x, y, 4, word(FLOAT), word(SUM), alone) == "" and (x == y).all()
        # As of processes with two devices each: of one clique; and of two, which begin with process 0's.
        several = [split(0, 2 * role.rank), split(role.rank, role.rank)]
        for each, text in several:
            assert "a process has several devices" in text
            reduce = ("Allreduce", x, y, 4, word(FLOAT), word(SUM), each)
            fails(*reduce, text="a process has several devices")
        programs(role.rank)
        begun = time.monotonic()
        if role.rank == 0:
            fails("Allreduce", x, y, 4, word(FLOAT), word(SUM), comm, text="member 0 is waited for")
            assert TIMEOUT_S - 0.5 < time.monotonic() - begun < 60
        group.barrier(timeout=60)
        request = word()  # nobody waits for this one
        call("Irecv", y, 4, word(FLOAT), 1 - ask("Comm_rank", comm), 8, comm, ctypes.byref(request))
        MPI.rdt_mpi_end()
        fails(
            "Allreduce",
            x,
            y,
            4,
            word(FLOAT),
            word(SUM),
            comm,
            text="this process has left the others",
        )
        for each in (comm, alone, *(each for each, _ in several)):
            assert call("Comm_free", ctypes.byref(each)) == ""
        group.barrier(timeout=60)
    print(f"process {role.rank} is done")


main()

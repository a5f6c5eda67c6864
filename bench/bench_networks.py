# SPDX-License-Identifier: Apache-2.0
"""The transport tcp against iperf3, bare sockets and UCX, and encrypted against itself,
in turns, over loopback, and as root over a pair of interfaces that joins two network namespaces."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import rivals
from harness import KB, MB, Bench, Way, main
from networks import CONGESTION, CUBIC, LOOPBACK, Network, may_make_veth, veth
from programs import await_listener, build, first_line, run, started
from record import BYTES_PER_SECOND, PER_SECOND, SECONDS
from team import free_port

SIZES, UCX_SIZES, ENCRYPTED_SIZES = (
    (64 * KB, MB, 16 * MB, 64 * MB),
    (4 * KB, MB, 64 * MB),
    (MB, 64 * MB),
)
DEPTH, STREAMS = 16, 2
CROWD = 256  # connections of one process
SHORT = "write of 8 bytes, until complete"
OURS, IPERF, BARE, BULK = "rdmatensor", "iperf3", "bare socket", "bare sockets, same buffers"
UCX, ENCRYPTED = "UCX", "rdmatensor, encrypted"


class Tcp:
    """Measures over one network."""

    def __init__(self, bench: Bench, programs: Path, network: Network, secret: Path) -> None:
        self._bench, self._network, self._stack = bench, network, contextlib.ExitStack()
        self._micro, self._sockets = programs / "micro", programs / "sockets"
        self._near, self._far = (
            {
                "RDMATENSOR_LOG_LEVEL": "error",
                "RDMATENSOR_QUEUE_PAIRS": str(STREAMS),
                **network.over_tcp(far),
            }
            for far in (False, True)
        )
        self._encrypt = {"RDMATENSOR_SECRET_FILE": str(secret), "RDMATENSOR_ENCRYPT": "on"}
        self._shape = (
            (20, 50) if bench.quick else (100, 100)
        )  # samples of a short write, and writes each

    def measure(self, has_ucx: bool) -> None:
        """All cases."""
        self._case(self._short_writes)
        for nbytes in SIZES:
            self._case(self._bandwidth, nbytes)
        for nbytes in UCX_SIZES if has_ucx else ():
            self._case(self._against_ucx, nbytes)
        self._case(self._crowd)
        for nbytes in (8, *ENCRYPTED_SIZES):
            self._case(self._encryption, nbytes)

    def _case(self, case: Any, *words: object) -> None:
        """Measure a case, and end the programs that it started."""
        with self._stack:
            case(*words)

    def _serve(self, *command: object, **more: str) -> str:
        """The first line of a program that serves at the other end until the end of the case."""
        words = [*self._network.prefix, *command]
        return first_line(self._stack.enter_context(started(words, {**self._far, **more})))

    def _short_writes(self) -> None:
        """A write of 8 bytes until it is complete, which is a round trip."""
        host, (samples, each) = self._network.host, self._shape
        address = self._serve(self._micro, "serve", 8)
        port = self._serve(self._sockets, "serve", "turn", host, 8)
        ways: dict[str, Way] = {
            OURS: lambda: self._us(address),
            BARE: lambda: self._lines(1e-6, self._sockets, "turn", host, port, 8, samples, each),
        }
        self._compare("", SHORT, 8, ways, OURS, (BARE, 1 / 1.15), SECONDS)

    def _bandwidth(self, nbytes: int) -> None:
        network, each = self._network, self._writes(nbytes)
        address = self._serve(self._micro, "serve", nbytes)
        at = self._serve(self._sockets, "serve", "stream", network.host, nbytes)
        stream = (self._sockets, "stream", network.host, at, nbytes, 3, each)
        ways: dict[str, Way] = {
            OURS: lambda: self._mbs(address, nbytes),
            BULK: lambda: [nbytes / seconds for seconds in self._lines(1e-6, *stream)],
        }
        if shutil.which("iperf3"):
            port = free_port()
            server = [*network.prefix, "iperf3", "-s", "-B", network.host, "-p", port]
            await_listener(self._stack.enter_context(started(server)), port)
            client = ["iperf3", "-c", network.host, "-p", port, "-P", STREAMS, "-t", "1", "-J"]

            def iperf() -> list[float]:
                found = json.loads(run([*client, "-l", min(nbytes, MB)]))
                return [found["end"]["sum_received"]["bits_per_second"] / 8]

            ways[IPERF] = iperf
        target = 0.95 if nbytes >= MB else None
        self._compare("", "write bandwidth", nbytes, ways, OURS, (IPERF, target))

    def _against_ucx(self, nbytes: int) -> None:
        """Writes of UCX, which is fastest with one long write at a time."""
        network = self._network
        near, far = (rivals.over_tcp(network.interface(end)) for end in (False, True))
        writes, depth = min(50_000, self._writes(nbytes)), DEPTH
        if nbytes >= MB:
            writes, depth = max(8, 256 * MB // nbytes), 1
        words = ("ucp_put_bw", nbytes, writes, depth, near)
        address = self._serve(self._micro, "serve", nbytes)
        ways: dict[str, Way] = {
            OURS: lambda: self._mbs(address, nbytes),
            UCX: lambda: [rivals.ucx(*words, network=network, far=far).bytes_per_second],
        }
        self._compare(", against UCX", "write bandwidth", nbytes, ways, OURS, (UCX, 1.2))

    def _encryption(self, nbytes: int) -> None:
        """What it costs: a short write, or bandwidth."""
        serve = (self._micro, "serve", nbytes)
        clear, encrypted = self._serve(*serve), self._serve(*serve, **self._encrypt)
        if nbytes == 8:
            ways: dict[str, Way] = {
                OURS: lambda: self._us(clear),
                ENCRYPTED: lambda: self._us(encrypted, **self._encrypt),
            }
        else:
            ways = {
                OURS: lambda: self._mbs(clear, nbytes),
                ENCRYPTED: lambda: self._mbs(encrypted, nbytes, **self._encrypt),
            }
        name, unit = (SHORT, SECONDS) if nbytes == 8 else ("write bandwidth", BYTES_PER_SECOND)
        suite = ", what encryption costs"
        self._compare(suite, name, nbytes, ways, ENCRYPTED, (OURS, None), unit)

    def _crowd(self) -> None:
        """Many connections of one process: how fast they are made, and what each takes."""
        address = self._serve(self._micro, "serve", 8, RDMATENSOR_CONNECTIONS="2048")
        for name, test, unit, times in (
            ("connections made", "crowd", PER_SECOND, 2 if self._bench.quick else 5),
            ("resident memory of a connection", "crowd_memory", "KiB", 1),
        ):
            words = (self._micro, test, address, 8, 1, CROWD)
            found = [self._lines(1, *words)[0] for _ in range(times)]
            self._bench.add(f"tcp, {self._network.name}", name, OURS, found, unit)

    def _writes(self, nbytes: int) -> int:
        return max(DEPTH, (256 if self._bench.quick else 1024) * MB // nbytes)

    def _lines(self, scale: float, *words: object, **more: str) -> list[float]:
        return [float(line) * scale for line in run(words, {**self._near, **more}).split()]

    def _us(self, address: str, **more: str) -> list[float]:
        samples, each = self._shape
        return self._lines(1e-6, self._micro, "write", address, 8, samples, 1, each, **more)

    def _mbs(self, address: str, nbytes: int, **more: str) -> list[float]:
        shape = (nbytes, 3, DEPTH, min(50_000, self._writes(nbytes)))
        return self._lines(1e6, self._micro, "write_bw", address, *shape, **more)

    def _compare(
        self,
        suite: str,
        name: str,
        nbytes: int,
        ways: dict[str, Way],
        ours: str,
        rival: tuple[str, float | None],
        unit: str = BYTES_PER_SECOND,
    ) -> None:
        self._bench.compare(
            *(f"tcp, {self._network.name}{suite}", name, ways, 3 if self._bench.quick else 7),
            rivals={ours: rival},
            unit=unit,
            nbytes=nbytes,
        )


def measure(bench: Bench) -> None:
    if not shutil.which("iperf3"):
        bench.missing(IPERF, "there is no iperf3", "apt-get install iperf3")
    with tempfile.TemporaryDirectory() as folder:
        programs, secret = build(Path(folder, "build")), Path(folder, "secret")
        secret.touch(0o600)
        secret.write_text(os.urandom(16).hex())
        networks: list[Any] = [contextlib.nullcontext(LOOPBACK)]
        if may_make_veth(bench):
            networks.append(veth())
            if CONGESTION.read_text().strip() != CUBIC:
                networks.append(veth(congestion=CUBIC))
        has_ucx = rivals.has_ucx(bench)
        for each in networks:
            with each as network:
                Tcp(bench, programs, network, secret).measure(has_ucx)


if __name__ == "__main__":
    main(measure)

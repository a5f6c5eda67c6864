# SPDX-License-Identifier: Apache-2.0
"""The transport tcp against iperf3, bare sockets and UCX, and encrypted against itself,
in turns, over loopback, and as root over a pair of interfaces that joins two network namespaces."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import rivals
from harness import KB, MB, Bench, Way, main
from networks import CONGESTION, CUBIC, LOOPBACK, Network, may_make_veth, veth
from programs import build_micro, first_line, run, started
from record import BYTES_PER_SECOND, PER_SECOND, SECONDS
from team import free_port

SIZES = (64 * KB, MB, 16 * MB, 64 * MB)
DEPTH, STREAMS = 16, 2
OURS, IPERF, BARE, BULK = "rdmatensor", "iperf3", "bare socket", "bare sockets, same buffers"
CROWD = 256  # connections of one process
UCX, UCX_SIZES, UCX_TARGET = "UCX", (4 * KB, MB, 64 * MB), 1.2
ENCRYPTED, ENCRYPTED_SIZES = "rdmatensor, encrypted", (MB, 64 * MB)


class Tcp:
    """Measures over one network."""

    def __init__(self, bench: Bench, micro: Path, network: Network, secret: Path) -> None:
        self._bench, self._micro, self._network = bench, micro, network
        self._quick = bench.quick
        self._bare_program, self._bulk = micro.with_name("bare"), micro.with_name("bulk")
        self._environment = {
            "RDMATENSOR_LOG_LEVEL": "error",
            "RDMATENSOR_QUEUE_PAIRS": str(STREAMS),
            **network.over_tcp(far=False),
        }
        self._server = {**self._environment, **network.over_tcp(far=True)}
        self._encrypt = {"RDMATENSOR_SECRET_FILE": str(secret), "RDMATENSOR_ENCRYPT": "on"}

    def short_writes(self, programs: int = 0) -> None:
        """A write of 8 bytes until it is complete, which is a round trip, beside programs that compute."""
        samples, each = (20, 50) if self._quick else (100, 100)
        network = self._network
        name = "write of 8 bytes, until complete" + (
            f", beside {programs} programs" if programs else ""
        )
        with (
            started([*network.prefix, self._micro, "serve", 8], self._server) as ours,
            started([*network.prefix, self._bare_program, "serve", network.host]) as bare,
            contextlib.ExitStack() as stack,
        ):
            for _ in range(programs):
                stack.enter_context(started([sys.executable, "-c", "while True: pass"]))
            address, port = first_line(ours), first_line(bare)
            ways: dict[str, Way] = {
                OURS: lambda: self._us("micro", "write", address, 8, samples, 1, each),
                BARE: lambda: self._us("bare", network.host, port, 8, samples, each),
            }
            self._compare(name, 8, SECONDS, ways, BARE)

    def bandwidth(self, nbytes: int) -> None:
        network, port = self._network, free_port()
        each = max(DEPTH, (256 if self._quick else 1024) * MB // nbytes)
        server = [*network.prefix, "iperf3", "-s", "-B", network.host, "-p", port]
        with contextlib.ExitStack() as stack:
            serve = [*network.prefix, self._micro, "serve", nbytes]
            address = first_line(stack.enter_context(started(serve, self._server)))
            bulk = [*network.prefix, self._bulk, "serve", network.host, nbytes]
            at = first_line(stack.enter_context(started(bulk)))
            ways: dict[str, Way] = {
                OURS: lambda: self._mbs(self._micro, "write_bw", address, nbytes, 3, DEPTH, each),
                BULK: lambda: self._mbs(self._bulk, network.host, at, nbytes, 3, each),
            }
            if shutil.which("iperf3"):
                stack.enter_context(started(server))
                time.sleep(0.5)  # iperf3 does not tell when it listens
                ways[IPERF] = lambda: self._iperf(port, nbytes)
            unit = BYTES_PER_SECOND
            self._compare("write bandwidth", nbytes, unit, ways, IPERF)

    def against_ucx(self, nbytes: int) -> None:
        """Writes of UCX, which is fastest with one long write at a time."""
        network, megabytes = self._network, 256 if self._quick else 1024
        each = max(DEPTH, min(50_000, megabytes * MB // nbytes))
        serve = [*network.prefix, self._micro, "serve", nbytes]
        near, far = (rivals.over_tcp(network.interface(end)) for end in (False, True))

        def ucx() -> list[float]:
            writes, depth = (each, DEPTH) if nbytes < MB else (max(8, 256 * MB // nbytes), 1)
            words = ("ucp_put_bw", nbytes, writes, depth, near)
            return [rivals.ucx(*words, network=network, far=far).bytes_per_second]

        with started(serve, self._server) as server:
            address = first_line(server)
            ours = [self._micro, "write_bw", address, nbytes, 3, DEPTH, each]
            ways: dict[str, Way] = {OURS: lambda: self._mbs(*ours), UCX: ucx}
            self._compare("write bandwidth", nbytes, BYTES_PER_SECOND, ways, UCX)

    def encryption(self, nbytes: int) -> None:
        """What it costs: a short write, or bandwidth."""
        serve = [*self._network.prefix, self._micro, "serve", nbytes]
        samples, each = (20, 50) if self._quick else (100, 100)
        many = max(DEPTH, (256 if self._quick else 1024) * MB // nbytes)
        with (
            started(serve, self._server) as clear,
            started(serve, {**self._server, **self._encrypt}) as encrypted,
        ):

            def way(address: str, **more: str) -> Way:
                if nbytes == 8:
                    return lambda: self._us("micro", "write", address, 8, samples, 1, each, **more)
                words = [self._micro, "write_bw", address, nbytes, 3, DEPTH, many]
                return lambda: self._mbs(*words, **more)

            ways = {
                OURS: way(first_line(clear)),
                ENCRYPTED: way(first_line(encrypted), **self._encrypt),
            }
            if nbytes == 8:
                name = "write of 8 bytes, until complete"
                self._compare(name, 8, SECONDS, ways, OURS)
            unit = BYTES_PER_SECOND
            self._compare("write bandwidth", nbytes, unit, ways, OURS)

    def crowd(self) -> None:
        """Many connections of one process: how fast they are made, and what each takes."""
        cases = [
            ("connections made", "crowd", PER_SECOND, 2 if self._quick else 5),
            ("resident memory of a connection", "crowd_memory", "KiB", 1),
        ]
        environment = {**self._server, "RDMATENSOR_CONNECTIONS": "2048"}
        with started([*self._network.prefix, self._micro, "serve", 8], environment) as server:
            address = first_line(server)
            for name, test, unit, times in cases:
                words = [self._micro, test, address, 8, 1, CROWD]
                found = [
                    float(run(words, self._environment).checked().output) for _ in range(times)
                ]
                suite = f"tcp, {self._network.name}"
                self._bench.add(suite, name, OURS, found, unit, connections=CROWD, sockets=STREAMS)

    def _us(self, program: str, *words: object, **more: str) -> list[float]:
        path = self._micro if program == "micro" else self._bare_program
        output = run([path, *words], {**self._environment, **more}).checked().output
        return [float(line) * 1e-6 for line in output.split()]

    def _mbs(self, *words: object, **more: str) -> list[float]:
        output = run(words, {**self._environment, **more}).checked().output
        return [float(line) * 1e6 for line in output.split()]

    def _iperf(self, port: int, nbytes: int) -> list[float]:
        words = ["iperf3", "-c", self._network.host, "-p", port, "-P", STREAMS, "-t", "1", "-J"]
        found = json.loads(run([*words, "-l", min(nbytes, MB)]).checked().output)
        return [found["end"]["sum_received"]["bits_per_second"] / 8]

    def _compare(self, name: str, nbytes: int, unit: str, ways: dict[str, Way], rival: str) -> None:
        ours = ENCRYPTED if rival == OURS else OURS
        targets = {BARE: 1 / 1.15, UCX: UCX_TARGET, IPERF: 0.95 if nbytes >= MB else None}
        more = {OURS: ", what encryption costs", UCX: ", against UCX"}.get(rival, "")
        self._bench.compare(
            *(f"tcp, {self._network.name}" + more, name, ways, 3 if self._quick else 7),
            rivals={ours: (rival, targets.get(rival))},
            unit=unit,
            nbytes=nbytes,
            depth=1 if unit == SECONDS else DEPTH,
            sockets=STREAMS,
        )

    def measure(self, has_ucx: bool) -> None:
        """All cases."""
        for programs in (0, os.cpu_count() or 1):
            self.short_writes(programs)
        for nbytes in SIZES:
            self.bandwidth(nbytes)
        for nbytes in UCX_SIZES if has_ucx else ():
            self.against_ucx(nbytes)
        self.crowd()
        for nbytes in (8, *ENCRYPTED_SIZES):
            self.encryption(nbytes)


def measure(bench: Bench, program: str = "") -> None:
    if not shutil.which("iperf3"):
        bench.missing(IPERF, "there is no iperf3", "apt-get install iperf3")
    with tempfile.TemporaryDirectory() as folder:
        micro = Path(program) if program else build_micro(Path(folder))
        secret = Path(folder, "secret")
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
                Tcp(bench, micro, network, secret).measure(has_ucx)


if __name__ == "__main__":
    main(measure, transport="tcp")

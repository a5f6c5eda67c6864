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
from collections.abc import Callable
from pathlib import Path

import click
from rich.status import Status

import rivals
from networks import CONGESTION, CUBIC, LOOPBACK, Network, missing_veth, veth
from options import console, deliver, json_option, program_option, quick_option
from programs import build_micro, first_line, free_port, run, started
from rdmatensor.bench import record
from rdmatensor.bench.turns import in_turns

KB, MB = 1 << 10, 1 << 20
SIZES = (64 * KB, MB, 16 * MB, 64 * MB)
DEPTH, STREAMS = 16, 2
OURS, IPERF, BARE, BULK = "rdmatensor", "iperf3", "bare socket", "bare sockets, same buffers"
CROWD = 256  # connections of one process
UCX, UCX_SIZES, UCX_TARGET = "UCX", (4 * KB, MB, 64 * MB), 1.2
ENCRYPTED, ENCRYPTED_SIZES = "rdmatensor, encrypted", (MB, 64 * MB)

Way = Callable[[], list[float]]


class Bench:
    def __init__(self, micro: Path, network: Network, quick: bool, secret: Path) -> None:
        self._micro, self._network, self._quick = micro, network, quick
        self._bare, self._bulk = micro.with_name("bare"), micro.with_name("bulk")
        self._environment = {
            "RDMATENSOR_LOG_LEVEL": "error",
            "RDMATENSOR_QUEUE_PAIRS": str(STREAMS),
            **network.over_tcp(far=False),
        }
        self._server = {**self._environment, **network.over_tcp(far=True)}
        self._encrypt = {"RDMATENSOR_SECRET_FILE": str(secret), "RDMATENSOR_ENCRYPT": "on"}

    def short_writes(self, programs: int = 0) -> list[record.Result]:
        """A write of 8 bytes until it is complete, which is a round trip, beside programs that compute."""
        samples, each = (20, 50) if self._quick else (100, 100)
        network = self._network
        name = "write of 8 bytes, until complete" + (
            f", beside {programs} programs" if programs else ""
        )
        with (
            started([*network.prefix, self._micro, "serve", 8], self._server) as ours,
            started([*network.prefix, self._bare, "serve", network.host]) as bare,
            contextlib.ExitStack() as stack,
        ):
            for _ in range(programs):
                stack.enter_context(started([sys.executable, "-c", "while True: pass"]))
            address, port = first_line(ours), first_line(bare)
            ways: dict[str, Way] = {
                OURS: lambda: self._us("micro", "write", address, 8, samples, 1, each),
                BARE: lambda: self._us("bare", network.host, port, 8, samples, each),
            }
            return self._results(name, 8, record.SECONDS, ways, BARE)

    def bandwidth(self, nbytes: int) -> list[record.Result]:
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
            unit = record.BYTES_PER_SECOND
            return self._results("write bandwidth", nbytes, unit, ways, IPERF)

    def against_ucx(self, nbytes: int) -> list[record.Result]:
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
            return self._results("write bandwidth", nbytes, record.BYTES_PER_SECOND, ways, UCX)

    def encryption(self, nbytes: int) -> list[record.Result]:
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
                return self._results(name, 8, record.SECONDS, ways, OURS)
            unit = record.BYTES_PER_SECOND
            return self._results("write bandwidth", nbytes, unit, ways, OURS)

    def crowd(self) -> list[record.Result]:
        """Many connections of one process: how fast they are made, and what each takes."""
        suite, results = f"tcp, {self._network.name}", []
        cases = [
            ("connections made", "crowd", record.PER_SECOND, 2 if self._quick else 5),
            ("resident memory of a connection", "crowd_memory", "KiB", 1),
        ]
        environment = {**self._server, "RDMATENSOR_CONNECTIONS_PER_HOST": "1024"}
        parameters: dict[str, record.Parameter] = {"connections": CROWD, "sockets": STREAMS}
        with started([*self._network.prefix, self._micro, "serve", 8], environment) as server:
            address = first_line(server)
            for name, test, unit, times in cases:
                words = [self._micro, test, address, 8, 1, CROWD]
                found = [
                    float(run(words, self._environment).checked().output) for _ in range(times)
                ]
                results.append(record.Result(suite, name, OURS, unit, found, parameters=parameters))
        return results

    def _us(self, program: str, *words: object, **more: str) -> list[float]:
        path = self._micro if program == "micro" else self._bare
        output = run([path, *words], {**self._environment, **more}).checked().output
        return [float(line) * 1e-6 for line in output.split()]

    def _mbs(self, *words: object, **more: str) -> list[float]:
        output = run(words, {**self._environment, **more}).checked().output
        return [float(line) * 1e6 for line in output.split()]

    def _iperf(self, port: int, nbytes: int) -> list[float]:
        words = ["iperf3", "-c", self._network.host, "-p", port, "-P", STREAMS, "-t", "1", "-J"]
        found = json.loads(run([*words, "-l", min(nbytes, MB)]).checked().output)
        return [found["end"]["sum_received"]["bits_per_second"] / 8]

    def _results(
        self, name: str, nbytes: int, unit: str, ways: dict[str, Way], rival: str
    ) -> list[record.Result]:
        turns = 3 if self._quick else 7
        ours = ENCRYPTED if rival == OURS else OURS
        targets = {BARE: 1 / 1.15, UCX: UCX_TARGET, IPERF: 0.95 if nbytes >= MB else None}
        target = targets.get(rival) if rival in ways else None
        compared = rival if rival in ways else ""
        more = {OURS: ", what encryption costs", UCX: ", against UCX"}.get(rival, "")
        return [
            record.Result(
                f"tcp, {self._network.name}" + more,
                name,
                way,
                unit,
                record.thinned(samples.all),
                nbytes,
                samples.turns,
                {
                    "depth": 1 if unit == record.SECONDS else DEPTH,
                    "turns": turns,
                    "sockets": STREAMS,
                },
                [],
                compared if way == ours else "",
                target if way == ours else None,
            )
            for way, samples in in_turns(ways, turns).items()
        ]


def measure(whole: record.Run, bench: Bench, name: str, has_ucx: bool, status: Status) -> None:
    status.update(f"{name}, short writes")
    for programs in (0, os.cpu_count() or 1):
        whole.results += bench.short_writes(programs)
    for nbytes in SIZES:
        status.update(f"{name}, {nbytes} bytes")
        whole.results += bench.bandwidth(nbytes)
    for nbytes in UCX_SIZES if has_ucx else ():
        status.update(f"{name}, {nbytes} bytes, against UCX")
        whole.results += bench.against_ucx(nbytes)
    status.update(f"{name}, {CROWD} connections")
    whole.results += bench.crowd()
    for nbytes in (8, *ENCRYPTED_SIZES):
        status.update(f"{name}, {nbytes} bytes, with and without encryption")
        whole.results += bench.encryption(nbytes)


@click.command(help=__doc__)
@quick_option("Measure less, in fewer turns.")
@program_option
@json_option
def main(quick: bool, program: Path | None, json_file: Path | None) -> None:
    whole = record.Run("The transport tcp", record.Environment.here(transport="tcp"))
    if not shutil.which("iperf3"):
        whole.missing.append(record.Missing(IPERF, "there is no iperf3", "apt-get install iperf3"))
    began = time.monotonic()
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        micro = program or build_micro(folder)
        secret = folder / "secret"
        secret.touch(0o600)
        secret.write_text(os.urandom(16).hex())
        networks: list[contextlib.AbstractContextManager[Network]] = [
            contextlib.nullcontext(LOOPBACK)
        ]
        no_veth, no_ucx = missing_veth(), rivals.missing_ucx()
        whole.missing += [each for each in (no_veth, no_ucx) if each]
        if not no_veth:
            networks.append(veth())
            if CONGESTION.read_text().strip() != CUBIC:
                networks.append(veth(congestion=CUBIC))
        status = stack.enter_context(console().status("measuring"))
        for each in networks:
            with each as network:
                bench = Bench(micro, network, quick, secret)
                measure(whole, bench, network.name, no_ucx is None, status)
    whole.finish(time.monotonic() - began)
    whole.quick = quick
    deliver(whole, json_file)


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: Apache-2.0
"""`rdmatensor ping`."""

from __future__ import annotations

import json
import sys
import threading
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from ..._api.remote import RemoteDevice
    from ...errors import RdmaError
    from .. import pinging

PORT = 7479

# Remedies for errors whose text has none.
HINTS = {
    "UNREACHABLE": "start `rdmatensor ping --listen` there, and open TCP port {port} in its firewall",
    "DEADLINE": "a firewall may drop packets: open TCP port {port}, and for RoCE UDP port 4791",
    "NO_TRANSPORT": "run `rdmatensor doctor` on both machines to see what each of them lacks",
    "CONNECTION_LOST": "the other side has ended, or its link is down: see its output",
    "PROTOCOL": "install the same rdmatensor on both, and give the port of `rdmatensor ping --listen`",
}  # fmt: skip


@click.command()
@click.argument("host", required=False, metavar="[HOST[:PORT]]")
@click.option("--listen", is_flag=True, help="Answer pings until Ctrl-C.")
@click.option("--port", metavar="N", type=click.IntRange(0, 65535),
              help=f"TCP port to listen on. Default: RDMATENSOR_BIND_PORT, or {PORT}.")  # fmt: skip
@click.option("--bind", metavar="ADDRESS",
              help="Address to listen on. Default: RDMATENSOR_BIND_ADDRESS, or all.")  # fmt: skip
@click.option("--once", is_flag=True, help="Stop listening once the first peer has disconnected.")
@click.option("--transport", metavar="NAME", help="Use this transport only: shm, verbs or tcp.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def ping(host: str | None, listen: bool, **options: Any) -> None:
    """Measure the connection to another machine: transport, latency and bandwidth.

    The other machine must run `rdmatensor ping --listen`, and both need the same secret
    (RDMATENSOR_SECRET_FILE). Prints the transport and why it was chosen, the latency of an 8-byte write, the
    round trip of a notification, and the bandwidth. All bytes are read back and compared.

    The exit status is 1 if the connection or the measurement fails, otherwise 0.

    \b
    Examples:
      rdmatensor ping --listen                      on one machine
      rdmatensor ping node7                         on the other
      rdmatensor ping node7:7500 --transport verbs --json
      rdmatensor ping --listen --bind 10.0.0.7 --port 7500 --once
    """
    if listen == bool(host):
        raise click.UsageError("expected HOST, or --listen on the machine that answers")
    from ...errors import RdmaError

    try:
        from ... import config

        if options["transport"]:
            config.set("TRANSPORTS", options["transport"])
        if host:
            # With a range, the listening side has its first port if that is free.
            host = address_of(host, config.get("BIND_PORT").partition("-")[0] or PORT)
            _measure(host, options["as_json"])
        else:
            _answer(options["bind"], options["port"], options["once"])
    except RdmaError as error:
        _fail(error, host)
    except KeyboardInterrupt:
        sys.exit(130)


def address_of(host: str, port: int | str = PORT) -> str:
    """Return "host:port" for "host", "host:port", "v6 address" or "[v6 address]:port"."""
    if host.count(":") > 1 and not host.startswith("["):
        return f"[{host}]:{port}"
    return host if host.rpartition("]")[2].count(":") else f"{host}:{port}"


def _fail(error: RdmaError, host: str | None) -> None:
    hint = HINTS.get(error.status) if host else None
    text = str(error)
    if hint and host:
        text += "; " + hint.format(port=address_of(host).rpartition(":")[2])
    click.echo(f"rdmatensor ping: {text}", err=True)
    sys.exit(1)


def _answer(bind: str | None, port: int | None, once: bool) -> None:
    from ... import config
    from ...device import Device
    from .. import pinging

    everywhere = config.get("BIND_ADDRESS") or "0.0.0.0"
    if port is None:
        port = 0 if config.get("BIND_PORT") else PORT
    with Device(name="ping, listening", bind=bind or everywhere, port=port) as device:
        click.echo(f"listening on {device.address}; press Ctrl-C to stop")
        for name, found in device.transports.items():
            click.echo(f"  {name}: {found.text or 'usable'}")
        if not config.get("SECRET_FILE") and config.get("INSECURE") == "0":
            click.echo("  RDMATENSOR_SECRET_FILE is not set: only this machine can connect")
        sys.stdout.flush()
        stop = threading.Event()

        def seen(peer: RemoteDevice) -> None:
            click.echo(f"answering {peer.peer} over {_way(peer)}")
            sys.stdout.flush()

        def gone(peer: RemoteDevice) -> None:
            if once:
                stop.set()

        pinging.echo(device, stop, seen, gone)


def _measure(address: str, as_json: bool) -> None:
    from ... import config
    from ...device import Device
    from .. import pinging

    config.set("BIND_PORT", "")  # nobody connects to this end, and a task may have the port
    with Device(name="ping") as device, device.connect(address) as remote, _progress() as bar:
        reasons = remote.passed_over
        task = bar.add_task("measuring", total=pinging.FULL.figures)
        result = pinging.measure(device, remote, pinging.FULL, lambda: bar.advance(task))
        peer, using = remote.peer, device.transports[remote.transport].text
    if as_json:
        report = {"peer": peer, "device": using, "passed_over": reasons, **asdict(result)}
        click.echo(json.dumps(report, indent=2))
    else:
        _show(peer, using, reasons, result)


def _way(of: RemoteDevice | pinging.Result) -> str:
    return of.transport + (", encrypted" if of.encrypted else "")


def _progress() -> Any:
    """Return a progress bar on standard error, if that is a terminal."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    return Progress(console=console, transient=True, disable=not console.is_terminal)


def _show(peer: str, using: str, reasons: dict[str, str], result: pinging.Result) -> None:
    from rich.console import Console
    from rich.table import Table

    from ...units import binary_size, duration, size

    console = Console(highlight=False)
    why = "; ".join(f"{name} is not usable: {reason}" for name, reason in reasons.items())
    text = f"{peer} over {_way(result)}" + (f", {using}" if using else "")
    console.print(text, soft_wrap=True, markup=False)
    console.print(why or "the best transport of this machine", soft_wrap=True, markup=False)
    table = Table(box=None, pad_edge=False)
    for heading in ("", "p50", "p99"):
        table.add_column(heading, justify="right" if heading else "left")
    rows = {"write of 8 bytes": result.write, "notification, round trip": result.round_trip}
    for name, latency in rows.items():
        table.add_row(name, duration(latency.p50), duration(latency.p99))
    console.print(table)
    table = Table(box=None, pad_edge=False)
    for heading in ("size", "write", "read"):
        table.add_column(heading, justify="right")
    for speed in result.speeds:
        table.add_row(binary_size(speed.size), f"{size(speed.write)}/s", f"{size(speed.read)}/s")
    console.print(table)
    console.print("all bytes were read back and compared")

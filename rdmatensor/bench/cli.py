# SPDX-License-Identifier: Apache-2.0
"""`rdmatensor bench`."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from .record import BadRecord, Run, merged, named_apart, reduced

KEPT = 21  # the quantiles in steps of 5 %, with p10, the median and p90 among them
DIGITS = 4


def _outputs(command: Callable[..., None]) -> Callable[..., None]:
    path = click.Path(path_type=Path, dir_okay=False)
    for option in (
        click.option("--html", type=path, help="Write a page with pictures."),
        click.option("--json", "record", type=path, help="Write the record with its samples."),
        click.option("--quick", is_flag=True, help="Measure fewer sizes: under a minute."),
        click.option(
            "--set",
            "settings",
            multiple=True,
            metavar="NAME=VALUE",
            help="Use this setting at both ends, such as TRANSPORTS=verbs; repeatable.",
        ),
    ):
        command = option(command)
    return command


def _settings(pairs: Sequence[str]) -> dict[str, str]:
    split = [pair.partition("=") for pair in pairs]
    for name, equals, _ in split:
        if not equals:
            raise click.UsageError(f"--set: expected NAME=VALUE, got {name!r}")
    return {name: value for name, _, value in split}


def _deliver(run: Run, record: Path | None, html: Path | None) -> None:
    from .report import show

    show(Console(width=None if sys.stdout.isatty() else 120), run)
    if record:
        run.write(record)
    if html:
        _write_page([run], html)
    if run.faults:
        sys.exit(1)


@contextmanager
def _drawing() -> Iterator[None]:
    """ClickException if matplotlib or jinja2 is not installed."""
    try:
        yield
    except ImportError as error:
        raise click.ClickException(
            f"pages need {error.name}: pip install 'rdmatensor[bench]'"
        ) from None


def _write_page(runs: Sequence[Run], path: Path) -> None:
    with _drawing():
        from .page import page
    path.write_text(page(runs))


def _write_pictures(run: Run, folder: Path) -> None:
    with _drawing():
        from .plots import pictures
    from .report import by_suite

    folder.mkdir(parents=True, exist_ok=True)
    for suite, results in by_suite(run.results).items():
        for what, svg in pictures(results):
            name = re.sub(r"[^a-z0-9]+", "-", f"{suite} {what}".lower()).strip("-")
            (folder / f"{name}.svg").write_text(svg + "\n")


def _measure(*arguments: Any, **options: Any) -> Run:
    from .cluster import BenchFailed, measure

    try:
        with Console(stderr=True).status("measuring"):
            return measure(*arguments, **options)
    except BenchFailed as error:
        raise click.ClickException(str(error)) from None


@click.group()
def bench() -> None:
    """Measure latency and bandwidth of the Python API, on this machine or between hosts.

    \b
    rdmatensor bench local --quick
    rdmatensor bench cluster --hosts hosts.txt --set TRANSPORTS=verbs --html bench.html
    rdmatensor bench report run1.json run2.json --html both.html
    """


@bench.command()
@_outputs
def local(quick: bool, record: Path | None, html: Path | None, settings: tuple[str, ...]) -> None:
    """Measure between two processes of this machine."""
    from .cluster import Host, Launcher

    hosts = [Host("this machine"), Host("this machine")]
    run = _measure(hosts, Launcher(), quick, _settings(settings))
    _deliver(run, record, html)


@bench.command()
@click.option("--hosts", "file", required=True,
              type=click.Path(exists=True, dir_okay=False, path_type=Path),
              help="File with a host per line: NAME [ADDRESS].")  # fmt: skip
@click.option("--launcher", "kind", type=click.Choice(["ssh", "slurm"]), default="ssh",
              show_default=True)  # fmt: skip
@click.option("--python", default=sys.executable, show_default="this one",
              help="Python interpreter with rdmatensor on the hosts.")  # fmt: skip
@click.option("--launcher-option", "options", multiple=True, metavar="WORD",
              help="Pass this word to ssh or srun, such as -p, then 2222; repeatable.")  # fmt: skip
@_outputs
def cluster(
    file: Path,
    kind: str,
    python: str,
    options: tuple[str, ...],
    quick: bool,
    record: Path | None,
    html: Path | None,
    settings: tuple[str, ...],
) -> None:
    """Measure from the first host of a file to each of the others.

    Processes are started with ssh or srun. They share a secret that is created for this run.
    """
    from .cluster import Launcher, read_hosts

    try:
        hosts = read_hosts(file)
    except ValueError as error:
        raise click.ClickException(str(error)) from None
    run = _measure(hosts, Launcher(kind, python, options), quick, _settings(settings))
    _deliver(run, record, html)


@bench.command()
@click.argument("records", nargs=-1, required=True,
                type=click.Path(exists=True, dir_okay=False, path_type=Path))  # fmt: skip
@click.option("--html", type=click.Path(path_type=Path, dir_okay=False), help="Write a page.")
@click.option("--json", "record", type=click.Path(path_type=Path, dir_okay=False),
              help=f"Write one record with {KEPT} quantiles of each result.")  # fmt: skip
@click.option("--pictures", type=click.Path(path_type=Path, file_okay=False),
              help="Write the pictures of the page into this folder, as SVG.")  # fmt: skip
def report(
    records: tuple[Path, ...], html: Path | None, record: Path | None, pictures: Path | None
) -> None:
    """Show the tables of RECORDS, which any benchmark of this project writes, or a page with pictures.

    Two records of the same benchmark are shown side by side, to compare two versions of the sources.
    """
    try:
        runs = named_apart({str(path): Run.read(path) for path in records})
    except BadRecord as error:
        raise click.ClickException(str(error)) from None
    whole = merged("Benchmarks", runs)
    if html:
        _write_page(runs, html)
    if pictures:
        _write_pictures(whole, pictures)
    if record:
        reduced(whole, KEPT, DIGITS).write(record)
    _deliver(whole, None, None)

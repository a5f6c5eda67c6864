# SPDX-License-Identifier: Apache-2.0
"""`rdmatensor plan`."""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import click

from rdmatensor import units
from rdmatensor.errors import RdmaError

from .model.errors import AnalysisError, LiveError
from .model.plan import TransferPlan, closest
from .place.analyze import DEFAULT_DEVICE, analyze
from .read.placement import PlacedOn
from .report.cost import TYPICAL, Network


@click.command()
@click.argument("source", required=False, metavar="[SOURCE]")
@click.option("--cluster", metavar="FILE", type=click.Path(path_type=Path),
              help='The tasks, as JSON: {"ps": ["host:port", ...], "worker": [...]}.')  # fmt: skip
@click.option("--html", metavar="FILE", type=click.Path(path_type=Path, dir_okay=False),
              help="Write a page with the links, the memory of receivers, and all tensors.")  # fmt: skip
@click.option("--json", "json_file", metavar="FILE", type=click.Path(path_type=Path, dir_okay=False),
              help="Write the plan as JSON.")  # fmt: skip
@click.option("--batch-size", metavar="N", type=click.IntRange(1),
              help="Batch size of a Keras model, or the largest batch size of another graph.")  # fmt: skip
@click.option("--fetch", "fetches", metavar="NAME", multiple=True,
              help="Fetch of the session; repeatable. Default: everything.")  # fmt: skip
@click.option("--feed", "feeds", metavar="NAME", multiple=True,
              help="Feed of the session; repeatable.")  # fmt: skip
@click.option(
    "--signature", default="serving_default", show_default=True, help="Signature of a SavedModel."
)
@click.option("--optimize", is_flag=True, help="Run TensorFlow's graph optimiser first.")
@click.option("--spread", type=click.Choice(["round_robin", "bytes"]), default="round_robin",
              show_default=True,
              help="How the variables of a Keras model are dealt out to the job ps: in turn, or each to the "
              "task that holds the fewest bytes.")  # fmt: skip
@click.option("--iterations", metavar="N", type=click.IntRange(1),
              help="How often loops run, where the graph does not tell.")  # fmt: skip
@click.option("--default-device", default=DEFAULT_DEVICE, show_default=True,
              help="Device of nodes that name none, which is the session's target.")  # fmt: skip
@click.option("--transport", type=click.Choice(sorted(TYPICAL)), default="verbs", show_default=True,
              help="Between tasks; sets what --bandwidth and --latency do not.")  # fmt: skip
@click.option(
    "--bandwidth", help="Bandwidth of each task's port. Default: 100Gbit, over tcp 10Gbit."
)
@click.option("--latency", help="Latency between tasks. Default: 2us, over tcp 30us.")
@click.option("--rows", default=20, show_default=True, type=click.IntRange(0),
              help="Show so many tensors, the largest first.")  # fmt: skip
@click.option("--parallel", is_flag=True,
              help="Show how to share the layers of a Keras model among workers instead. SOURCE is the file "
              "of a saved model, module:function, or vgg_a, overfeat_fast or cd_dnn.")  # fmt: skip
@click.option("--workers", metavar="N", default=64, show_default=True, type=click.IntRange(1),
              help="With --parallel.")  # fmt: skip
@click.option("--gbps", metavar="X", type=click.FloatRange(0, min_open=True),
              help="The same as --bandwidth XGbit.")  # fmt: skip
@click.option("--gflops", metavar="X", type=click.FloatRange(0, min_open=True),
              help="With --parallel: operations of a worker per second, in 1e9. Default: layers are measured "
              "on this machine.")  # fmt: skip
@click.option("--live", "targets", metavar="HOST:PORT", multiple=True,
              help="Show the current plan of a running server; with SOURCE, how it differs. Repeatable: "
              "a server only knows what it receives.")  # fmt: skip
def plan(source: str | None, targets: tuple[str, ...], **options: Any) -> None:
    """Show what a graph will send between tasks, and how, before a cluster exists.

    SOURCE is module:function, whose result graph_analyzer.analyze accepts, a file with a Keras model (.keras,
    .h5), a GraphDef (.pb, .pbtxt) or a plan (.json), or the folder of a SavedModel that names tasks. A Keras
    model needs --cluster.

    \b
    Examples:
      rdmatensor plan mini:model --cluster cluster.json --batch-size 32 --html plan.html
      rdmatensor plan --parallel mini:model --workers 64 --gbps 100 --batch-size 512
      rdmatensor plan --live host:2222       the current plan of a running server
    """
    if source is None and not targets:
        raise click.UsageError("expected SOURCE, --live, or both to compare them")
    try:
        if options["parallel"]:
            _run_parallel(source, options)
        else:
            _run(source, targets, options)
    except (AnalysisError, LiveError, RdmaError, OSError) as error:
        _fail(str(error))


def _fail(message: str) -> NoReturn:
    click.echo(f"rdmatensor plan: {message}", err=True)
    sys.exit(1)


def _console() -> Any:
    """Return a console that breaks no line, and no name, for a pipe."""
    from rich.console import Console

    fits = sys.stdout.isatty() or "COLUMNS" in os.environ
    return Console(width=None if fits else 10_000)


def _run(source: str | None, targets: tuple[str, ...], options: dict[str, Any]) -> None:
    from .live import live
    from .report import text

    network = _network(options)
    found = live(*targets) if targets else None
    expected = _analyze(source, options) if source else None
    shown = expected or found
    if shown is None:
        return
    console = _console()
    console.print(text.report(shown, network, options["rows"]))
    if expected and found:
        console.print("\n[bold]From SOURCE to the server[/bold]")
        console.print(text.difference(closest(expected, found)))
    if options["json_file"]:
        shown.save(options["json_file"])
    if options["html"]:
        from .report.html import to_html

        title = f"Transfer plan: {source or ' '.join(targets)}"
        to_html(shown, options["html"], network, title)


def _run_parallel(source: str | None, options: dict[str, Any]) -> None:
    from .parallel import report
    from .parallel.layers import NETWORKS
    from .parallel.study import study
    from .read.placement import SUFFIXES, load

    if source is None:
        raise AnalysisError("--parallel needs SOURCE")
    if options["json_file"]:
        raise AnalysisError("--parallel writes no JSON: use --html")
    network = _network(options)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    found = study(
        source
        if source in NETWORKS
        else load(source)
        if source.endswith(SUFFIXES)
        else _call(source),
        f"Parallel plan: {source}",
        options["batch_size"] or 4 * options["workers"],
        options["workers"],
        network,
        1e9 * options["gflops"] if options["gflops"] else None,
    )
    _console().print(report.text(found))
    if options["html"]:
        options["html"].write_text(report.page(found))


def _network(options: dict[str, Any]) -> Network:
    network = TYPICAL[options["transport"]]
    if options["gbps"] and options["bandwidth"]:
        raise AnalysisError("--gbps and --bandwidth say the same: give one of them")
    if options["gbps"]:
        network = replace(network, bandwidth=options["gbps"] * 1e9 / 8)
    try:
        if options["bandwidth"]:
            network = replace(network, bandwidth=units.bandwidth(options["bandwidth"]))
        if options["latency"]:
            network = replace(network, latency=units.latency(options["latency"]))
    except ValueError as error:
        raise AnalysisError(str(error)) from None
    return network


def _analyze(source: str, options: dict[str, Any]) -> TransferPlan:
    # Keep TensorFlow's log out of the report.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    if source.endswith(".json"):
        return TransferPlan.from_json(Path(source).read_bytes())
    cluster = _cluster(options["cluster"])
    path = Path(source)
    graph = path if path.exists() or ":" not in source else _call(source)
    placed = cluster is not None and {"ps", "worker"} <= set(cluster)
    return analyze(
        graph,
        strategy=PlacedOn.cluster(cluster, options["spread"]) if cluster and placed else None,
        cluster=cluster,
        batch_size=options["batch_size"],
        fetches=options["fetches"] or None,
        feeds=options["feeds"] or None,
        signature=options["signature"],
        optimize=options["optimize"],
        iterations=options["iterations"],
        default_device=options["default_device"],
    )


def _cluster(path: Path | None) -> Mapping[str, Sequence[str]] | None:
    if path is None:
        return None
    form = f'{path}: expected {{"ps": ["host:port", ...], "worker": [...]}}'
    try:
        cluster = json.loads(path.read_bytes())
    except ValueError as error:
        raise AnalysisError(f"{form}, but it is not JSON: {error}") from None
    well_formed = isinstance(cluster, dict) and all(
        isinstance(tasks, list) and tasks and all(isinstance(task, str) for task in tasks)
        for tasks in cluster.values()
    )
    if not well_formed or not cluster:
        raise AnalysisError(form)
    return dict(cluster)


def _call(name: str) -> Any:
    """Return the result of "module:function". The module may be in the current folder."""
    module_name, _, function_name = name.partition(":")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise AnalysisError(
            f"{name}: neither a file nor a module:function ({error}); run the command in the folder of "
            "the module, or set PYTHONPATH"
        ) from error
    function = getattr(module, function_name, None)
    if not callable(function):
        raise AnalysisError(f"module {module_name!r} has no function {function_name!r}")
    return function()

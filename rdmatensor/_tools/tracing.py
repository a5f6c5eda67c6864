# SPDX-License-Identifier: Apache-2.0
"""Trace what the plugin does, for chrome://tracing and ui.perfetto.dev.

TensorFlow's profiler records the plugin's spans together with everything else. This module extracts them
and gives each edge a row.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from .._api import plugin
from ..errors import Unsupported, UsageError

PREFIX = "rdmatensor::"


class Span(NamedTuple):
    """One action of the plugin."""

    what: str
    """"send", "wait", "copy", "read", "collective"."""
    start_us: float
    """Since 1970."""
    duration_us: float
    thread: str
    details: dict[str, Any]
    """"edge", "peer", "bytes", "path" and others: docs/metrics.md lists them."""


@contextlib.contextmanager
def trace(path: str | os.PathLike[str], computation: bool = False) -> Iterator[None]:
    """Write what this process's plugin does within the block to `path`, in Chrome's trace format (JSON).

        with rdmatensor.tensorflow.trace("worker0.json"):
            train_step()

    Rows are edges: what this process sent, and what it waited for; and operations between processes. With
    `computation`, rows are also TensorFlow's threads, with the operations that they compute. Times are those
    of the machine's clock, in microseconds, so traces of several tasks can be combined. Occupies
    TensorFlow's profiler, of which a process has one. Writes the file even if the block fails.

    Raises Unsupported if the plugin is not in this process, UsageError if a profile is being taken already.
    """
    if not plugin.loaded():
        raise Unsupported(f"nothing can be traced: {plugin.why_not()}", "UNSUPPORTED")
    import tensorflow as tf

    profiler = tf.profiler.experimental
    with tempfile.TemporaryDirectory(prefix="rdmatensor-trace-") as folder:
        try:
            profiler.start(
                folder,
                profiler.ProfilerOptions(
                    host_tracer_level=2, python_tracer_level=0, device_tracer_level=0
                ),
            )
        except tf.errors.AlreadyExistsError:
            raise UsageError(
                "TensorFlow's profiler is in use already: end that profile first", "INVALID"
            ) from None
        try:
            yield
        finally:
            profiler.stop()
            document = chrome(spans(folder, computation), ", ".join(plugin.stats()["servers"]))
            Path(path).write_text(json.dumps(document))


def spans(folder: str | os.PathLike[str], computation: bool = False) -> list[Span]:
    """Return our spans, by start time, from what TensorFlow's profiler wrote below `folder`.

    With `computation`, also those of TensorFlow's operations.

    Imports TensorFlow.
    """
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    found = []
    for file in Path(folder).rglob("*.xplane.pb"):
        space = xplane_pb2.XSpace.FromString(file.read_bytes())
        for plane in space.planes:
            found += [span for line in plane.lines for span in _of_line(plane, line, computation)]
    return sorted(found, key=lambda span: span.start_us)


def _of_line(plane: Any, line: Any, computation: bool) -> Iterator[Span]:
    """Yield our spans of one thread, which the profiler calls a line."""
    for event in line.events:
        name = plane.event_metadata[event.metadata_id].name
        # What has one colon is an operation and its type.
        if name.startswith(PREFIX) or (computation and name.count(":") == 1 and "::" not in name):
            details = {
                plane.stat_metadata[stat.metadata_id].name: _value(plane, stat)
                for stat in event.stats
            }
            start = line.timestamp_ns / 1e3 + event.offset_ps / 1e6
            what = name.removeprefix(PREFIX)
            yield Span(what, start, event.duration_ps / 1e6, line.name, details)


def _value(plane: Any, stat: Any) -> Any:
    kind = stat.WhichOneof("value")
    value = getattr(stat, kind) if kind else ""
    return plane.stat_metadata[value].name if kind == "ref_value" else value


def chrome(found: list[Span], process: str) -> dict[str, Any]:
    """Return the spans in Chrome's trace format: "complete" events on named rows.

    Source: Trace Event Format, https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU.
    """
    pid = os.getpid()
    rows: dict[str, int] = {}
    events: list[Mapping[str, Any]] = []
    for span in found:
        row = rows.setdefault(_row(span), len(rows) + 1)
        events.append(
            {
                "ph": "X",
                "name": span.what,
                "cat": "rdmatensor",
                "pid": pid,
                "tid": row,
                "ts": span.start_us,
                "dur": span.duration_us,
                "args": span.details,
            }
        )
    names = [(pid, 0, "process_name", process or f"process {pid}")]
    names += [(pid, row, "thread_name", name) for name, row in rows.items()]
    for number, row, kind, name in names:
        about = {"ph": "M", "name": kind, "pid": number, "tid": row, "args": {"name": name}}
        events.append(about)
    return {"displayTimeUnit": "ms", "traceEvents": events}


def _row(span: Span) -> str:
    edge, peer = span.details.get("edge"), span.details.get("peer")
    if "operation" in span.details:
        return str(span.details["operation"])
    if ":" in span.what:
        return f"computation on {span.thread}"
    if edge is None:
        return f"{span.what} on {span.thread}"
    return f"{span.what} {edge} {'to' if span.what == 'send' else 'from'} {peer}"

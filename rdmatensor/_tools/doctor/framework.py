# SPDX-License-Identifier: Apache-2.0
"""Findings about TensorFlow and the plugin."""

from __future__ import annotations

import os
from importlib import metadata

from ..._api.extras import build_info
from . import child
from .finding import Finding

_PACKAGES = ("tensorflow", "tensorflow-cpu", "tensorflow-gpu", "tf-nightly")
_IMPORT_SECONDS = 120.0
AREA = "TensorFlow"


def version() -> str:
    """Return the version of TensorFlow, without importing it; "" if it is not installed."""
    for package in _PACKAGES:
        try:
            return metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return ""


def finding(thoroughly: bool) -> Finding:
    """Report whether protocol="grpc+rdma" works. `thoroughly` imports TensorFlow, in another process."""
    built, here = build_info().get("tensorflow"), version()
    if not here:
        return Finding(AREA, "ok", "not installed; the Python API and groups work without it")
    if not built:
        why = build_info().get("no_tensorflow_because")
        why = why or "rdmatensor was not installed by its own build"
        text = f"{here}, and the plugin was not built: {why}"
        return Finding(AREA, "warn", text, _rebuild())
    versions = built.split(", ")
    minors = [_minor(version) for version in versions]
    if _minor(here) not in minors:
        text = f"{here}, and the plugin is for {', '.join(minors)}: TensorFlow works, grpc+rdma does not"
        # pip does not accept a release candidate for a minor version.
        released = [_minor(version) for version in versions if "rc" not in version] or minors
        return Finding(AREA, "fail", text, f"pip install 'tensorflow=={released[-1]}.*'")
    if os.environ.get("RDMATENSOR_DISABLE", "0") not in ("", "0"):
        text = f"{here}; RDMATENSOR_DISABLE leaves the plugin unloaded"
        return Finding(AREA, "warn", text, "unset RDMATENSOR_DISABLE")
    if not thoroughly:
        return Finding(
            AREA, "ok", f"{here}, and the plugin was built for it (not loaded); {_ways()}"
        )
    return _tried(here)


def _tried(here: str) -> Finding:
    outcome = child.call(__name__, "why_not", _IMPORT_SECONDS, TF_CPP_MIN_LOG_LEVEL="2")
    if outcome.value == "":
        return Finding(AREA, "ok", f"{here}; it loads the plugin; {_ways()}")
    why = f"`import tensorflow` {outcome.why_not}"
    if outcome.value:
        why = f"the plugin does not load: {outcome.value}"
    return Finding(AREA, "fail", f"{here}: {why}", _rebuild())


def _ways() -> str:
    """Say what leaves gRPC with the settings of this process."""
    from ... import config  # without the library, doctor still has to say so

    if config.get("POLICY") == "grpc":
        return "everything goes by gRPC (RDMATENSOR_POLICY=grpc)"
    if config.get("CONTROL") == "grpc":
        return "tensors leave gRPC, what starts steps does not (RDMATENSOR_CONTROL=grpc)"
    return "tensors and what starts steps leave gRPC"


def why_not() -> str:
    """Import TensorFlow, and return why it did not load the plugin; "" if it did."""
    import tensorflow  # noqa: F401

    from ... import tensorflow as ours

    return ours.why_not()


def _rebuild() -> str:
    return "pip install --no-build-isolation --force-reinstall --no-deps .   (in the sources of rdmatensor)"


def _minor(full: str) -> str:
    return ".".join(full.split(".")[:2])

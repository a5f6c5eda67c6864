# SPDX-License-Identifier: Apache-2.0
"""Find the TensorFlow plugin in this process, and read its counters."""

from __future__ import annotations

import ctypes
import json
import os
import sys
import sysconfig
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from ..errors import Unsupported
from .counters import Stats
from .extras import build_info

_PACKAGE = Path(__file__).resolve().parents[1]
_PLUGINS = "librdmatensor_tensorflow_*.so"  # one per minor version of TensorFlow
_NAME = "tensorflow-plugins/librdmatensor_shim.so"
# It lies beside the package or, in an editable install, where TensorFlow looks for plugins.
SHIM = _PACKAGE.parent / _NAME
if not SHIM.exists():
    SHIM = Path(sysconfig.get_path("platlib"), _NAME)


def loaded() -> bool:
    """Return whether this process has the plugin, so that `protocol="grpc+rdma"` works."""
    return _loaded() is not None


def why_not() -> str:
    """Return why `loaded` is false, with the remedy; "" if it is true."""
    if loaded():
        return ""
    if not SHIM.exists():
        return f"this installation of rdmatensor has no TensorFlow plugin: {_why_not_built()}"
    if "tensorflow" not in sys.modules:
        return "TensorFlow is not imported in this process: import tensorflow first"
    shim = _open_loaded(SHIM)
    if shim is None:
        return (
            f"TensorFlow did not load {SHIM}: its folder must be in a site-packages folder of this "
            "Python"
        )
    reason = ctypes.string_at(ctypes.addressof(ctypes.c_char.in_dll(shim, "rdt_shim_reason")))
    return reason.decode(errors="replace") or f"none of {_PACKAGE / _PLUGINS} is loaded"


def stats() -> Stats:
    """Return counters by path, why tensors went by RPC, use of the arena, and how each peer is reached.

    Bytes are those of the tensors' contents. Raises Unsupported, with the reason of `why_not`, if this
    process does not have the plugin.
    """
    function = library().rdt_tf_stats_json
    function.restype = ctypes.c_size_t
    function.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
    text = text_of(lambda out, size: int(function(out, size)))
    result: Stats = json.loads(text or "{}")
    return result


def text_of(function: Callable[[Any, int], int]) -> str | None:
    """Return the text that a C function writes; None if the function returns 0.

    The function returns the size that the text needs. The text may quote a peer, which may send any bytes,
    so bytes that are not UTF-8 are replaced.
    """
    size = function(None, 0)
    while size:
        # The text may have grown since it was measured.
        text = ctypes.create_string_buffer(size + 1024)
        size = function(text, len(text))
        if size <= len(text):
            return text.value.decode(errors="replace")
    return None


def library() -> ctypes.CDLL:
    """Return the plugin. Raises Unsupported, with the reason, if it is not loaded."""
    library = _loaded()
    if library is None:
        raise Unsupported(f"the TensorFlow plugin is not loaded: {why_not()}", "UNSUPPORTED")
    return library


def find_loaded(pattern: str) -> ctypes.CDLL | None:
    """Return the library of this package that this process has loaded, by a pattern of its file name."""
    found = map(_open_loaded, sorted(_PACKAGE.glob(pattern)))
    return next((library for library in found if library is not None), None)


def _loaded() -> ctypes.CDLL | None:
    """Return the plugin that the shim loaded, if any."""
    return find_loaded(_PLUGINS)


def _open_loaded(path: Path) -> ctypes.CDLL | None:
    """Return the library if this process has already loaded it."""
    try:
        return ctypes.CDLL(str(path), mode=os.RTLD_NOW | os.RTLD_NOLOAD)
    except OSError:
        return None


@cache
def _why_not_built() -> str:
    if not (facts := build_info()):
        return "it does not come from rdmatensor's own build"
    return facts.get("no_tensorflow_because") or "it was removed after the build"

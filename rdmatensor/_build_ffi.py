# SPDX-License-Identifier: Apache-2.0
"""Builds the module `rdmatensor._ffi` from the public C header itself (cffi, API mode).

There is no second copy of the declarations to drift: the header's text, less what the preprocessor
would remove, is the cdef, and the C compiler checks every struct and prototype against the header.
"""

from __future__ import annotations

import re
from pathlib import Path

from cffi import FFI

INCLUDE = Path(__file__).resolve().parent.parent / "csrc" / "include"
HEADER = INCLUDE / "rdmatensor.h"

# Object-like macros with a value that Python needs; `...` lets the C compiler supply it.
CONSTANTS = re.compile(r"^#define (RDT_[A-Z_]+) \(?-?\d+\)?\s*$", re.MULTILINE)
EXTERN_C = re.compile(r'#ifdef __cplusplus\n(?:extern "C" \{|\})\n#endif\n')


def declarations(header: str) -> str:
    """The text of rdmatensor.h as cffi's parser wants it."""
    constants = [f"#define {name} ..." for name in CONSTANTS.findall(header)]
    text = EXTERN_C.sub("", header)
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)
    text = re.sub(r"^#.*$", "", text, flags=re.MULTILINE)
    return "\n".join([*constants, text.replace("RDT_API ", "")])


def ffibuilder() -> FFI:
    ffi = FFI()
    ffi.cdef(declarations(HEADER.read_text(encoding="utf-8")))
    ffi.set_source(
        "rdmatensor._ffi",
        '#include "rdmatensor.h"',
        include_dirs=[str(INCLUDE)],
        libraries=["rdmatensor"],
        # The library is installed beside the module; the TensorFlow plugin links the same file.
        extra_link_args=["-Wl,-rpath,$ORIGIN"],
        extra_compile_args=["-O2"],
    )
    return ffi

# SPDX-License-Identifier: Apache-2.0
"""Build the module `rdmatensor._ffi` from the public C headers themselves (cffi, API mode).

There is no second copy of the declarations to drift: the headers' text, less what the preprocessor
would remove, is the cdef, and the C compiler checks every struct and prototype against the headers.
"""

from __future__ import annotations

import re
from pathlib import Path

from cffi import FFI

INCLUDE = Path(__file__).resolve().parent.parent / "csrc" / "include"

# Object-like macros with a value that Python needs; `...` lets the C compiler supply it.
CONSTANTS = re.compile(r"^#define (RDT_[A-Z_]+) \(?-?\d+\)?\s*$", re.MULTILINE)
# Beside the header: what C asks Python while it waits; and one call from Python instead of one for each
# field of an operation. Those that return int64_t return 0 for what is complete, a status below 0, or the
# address of a transfer.
MORE_DECLARATIONS = """
extern "Python" int rdt_python_interrupted(void *context);
rdt_status rdt_python_run(rdt_group *group, rdt_collective *call, const void *input, void *output,
                          uint64_t count);
int64_t rdt_python_start(rdt_group *group, const rdt_collective *call);
int64_t rdt_python_message(rdt_group *group, int receives, rdt_dtype dtype, uint32_t peer, void *bytes,
                           uint64_t count, int timeout_ms, uint64_t tag, uint64_t name,
                           rdt_collective_report *report);
int64_t rdt_python_post(rdt_channel *channel, uint32_t kind, const void *local, uint64_t size,
                        rdt_remote_region *remote, uint64_t offset, uint64_t immediate);
int64_t rdt_python_atomic(rdt_channel *channel, uint32_t kind, uint64_t *old, rdt_remote_region *remote,
                          uint64_t offset, uint64_t operand, uint64_t expected);
"""
MORE_SOURCE = """
static rdt_status rdt_python_run(rdt_group *group, rdt_collective *call, const void *input,
                                 void *output, uint64_t count) {
  call->input = input;
  call->output = output;
  call->count = count;
  return rdt_group_run(group, call);
}

static int64_t rdt_python_start(rdt_group *group, const rdt_collective *call) {
  rdt_transfer *transfer = NULL;
  rdt_status status = rdt_group_submit(group, call, &transfer);
  if (status < 0) return status;
  if (rdt_transfer_wait(transfer, 0) != RDT_OK) return (intptr_t)transfer;
  rdt_transfer_free(transfer);
  return 0;
}

static int64_t rdt_python_message(rdt_group *group, int receives, rdt_dtype dtype, uint32_t peer,
                                  void *bytes, uint64_t count, int timeout_ms, uint64_t tag,
                                  uint64_t name, rdt_collective_report *report) {
  const rdt_collective call = {.struct_size = sizeof(call),
                               .kind = receives ? RDT_RECEIVE : RDT_SEND,
                               .dtype = dtype,
                               .root = peer,
                               .tag = {tag, name},
                               .input = receives ? NULL : bytes,
                               .output = receives ? bytes : NULL,
                               .count = count,
                               .timeout_ms = timeout_ms,
                               .report = report};
  return rdt_python_start(group, &call);
}

static int64_t rdt_python_submit(rdt_channel *channel, const rdt_op *op) {
  rdt_transfer *transfer = NULL;
  rdt_status status = rdt_channel_submit(channel, op, 1, &transfer);
  return status == RDT_IN_PROGRESS ? (intptr_t)transfer : status;
}

static int64_t rdt_python_post(rdt_channel *channel, uint32_t kind, const void *local,
                               uint64_t size, rdt_remote_region *remote, uint64_t offset,
                               uint64_t immediate) {
  rdt_op op = {.kind = kind, .local = (void *)local, .size = size, .remote = remote,
               .remote_offset = offset, .immediate = immediate};
  return rdt_python_submit(channel, &op);
}

static int64_t rdt_python_atomic(rdt_channel *channel, uint32_t kind, uint64_t *old,
                                 rdt_remote_region *remote, uint64_t offset, uint64_t operand,
                                 uint64_t expected) {
  rdt_op op = {.kind = kind, .local = old, .size = RDT_ATOMIC_SIZE, .remote = remote,
               .remote_offset = offset, .operand = operand, .expected = expected};
  return rdt_python_submit(channel, &op);
}
"""
PART = re.compile(r'^#include "(rdmatensor/\w+\.h)"$', re.MULTILINE)
EXTERN_C = re.compile(r'#ifdef __cplusplus\n(?:extern "C" \{|\})\n#endif\n')


def public_header() -> str:
    """Return the text of rdmatensor.h: of the parts that it includes, in their order."""
    parts = PART.findall((INCLUDE / "rdmatensor.h").read_text(encoding="utf-8"))
    return "".join((INCLUDE / part).read_text(encoding="utf-8") for part in parts)


def declarations(header: str) -> str:
    """Return the text of public_header() as cffi's parser wants it."""
    constants = [f"#define {name} ..." for name in CONSTANTS.findall(header)]
    text = EXTERN_C.sub("", header)
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)
    text = re.sub(r"^#.*$", "", text, flags=re.MULTILINE)
    return "\n".join([*constants, text.replace("RDT_API ", "")])


def ffibuilder() -> FFI:
    """Return the builder of `rdmatensor._ffi`, which setup.py names."""
    ffi = FFI()
    ffi.cdef(declarations(public_header()) + MORE_DECLARATIONS)
    ffi.set_source(
        "rdmatensor._ffi",
        '#include "rdmatensor.h"\n' + MORE_SOURCE,
        include_dirs=[str(INCLUDE)],
        # The library is installed beside the module; the TensorFlow plugin links the same file.
        extra_link_args=["-l:librdmatensor.so.0", "-Wl,-rpath,$ORIGIN"],
        # Some Pythons were built with -g and hand that on; debug information names the folders of the build,
        # and two builds would differ.
        extra_compile_args=["-O2", "-g0"],
    )
    return ffi

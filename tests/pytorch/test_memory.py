# SPDX-License-Identifier: Apache-2.0
"""The memory of torch's tensors."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

# Prints the flags of the kernel's area in which a tensor of 8 MB lies.
PROGRAM = """
import torch
import rdmatensor.torch
tensor = torch.ones(1 << 21)
address = tensor.data_ptr()
inside = False
for line in open("/proc/self/smaps"):
    first = line.split(maxsplit=1)[0]
    if not first.endswith(":"):
        begin, end = (int(each, 16) for each in first.split("-"))
        inside = begin <= address < end
    elif inside and first == "VmFlags:":
        print(line)
"""


@pytest.mark.skipif(
    not Path("/sys/kernel/mm/transparent_hugepage").exists(), reason="the kernel has no large pages"
)
@pytest.mark.parametrize("said", [None, "0"], ids=["unset", "off"])
def test_large_tensors_ask_for_large_pages(said: str | None) -> None:
    variables = {
        name: value for name, value in os.environ.items() if name != "THP_MEM_ALLOC_ENABLE"
    }
    variables |= {} if said is None else {"THP_MEM_ALLOC_ENABLE": said}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=100, env=variables
    )
    assert done.returncode == 0, done.stderr
    assert ("hg" in done.stdout.split()) == (said is None), done.stdout

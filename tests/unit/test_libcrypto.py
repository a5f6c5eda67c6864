# SPDX-License-Identifier: Apache-2.0
"""Which of OpenSSL's libraries the core takes: tests/unit/test_mac.c with others in place of the system's."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest

from support import tools

# Answers everything, and the same: every two codes are equal.
CARELESS = """
int SHA256_Init(void *state) { return state != 0; }
int SHA256_Update(void *state, const void *data, unsigned long size) { return state && data && size + 1; }
int SHA256_Final(unsigned char *hash, void *state) { hash[0] = 1; return state != 0; }
int CRYPTO_memcmp(const void *a, const void *b, unsigned long size) { return !a || !b || !size; }
"""
REAL, CURTAILED, DAMAGED = "real", "int OPENSSL_init_crypto(void) { return 1; }", "damaged"


def real() -> Path:
    """The system's library."""
    try:
        ctypes.CDLL("libcrypto.so.3")
    except OSError:
        pytest.skip("no libcrypto.so.3")
    maps = Path("/proc/self/maps").read_text().splitlines()
    return Path(next(line.split()[-1] for line in maps if line.endswith("libcrypto.so.3")))


def make(folder: Path, version: str, kind: str) -> None:
    library = folder / f"libcrypto.so.{version}"
    if kind == REAL:
        shutil.copyfile(real(), library)
    elif kind == DAMAGED:
        library.write_bytes(b"not a library, and nothing behind it is looked at")
    else:
        source = folder / f"{version}.c"
        source.write_text(kind)
        command = [tools.compiler(), "-shared", "-fPIC", str(source), "-o", str(library)]
        subprocess.run(command, check=True, timeout=60)


@pytest.mark.parametrize(
    ("three", "four", "said"),
    [
        (DAMAGED, REAL, ""),
        (CURTAILED, REAL, ""),
        (CARELESS, REAL, ""),
        (REAL, CARELESS, ""),
        (CARELESS, CURTAILED, "does not compute SHA-256 in this process"),
        (DAMAGED, DAMAGED, "needs OpenSSL's libcrypto.so.3 or .4, which is not installed"),
    ],
)
def test_first_library_that_works_is_taken(
    programs: Path, tmp_path: Path, three: str, four: str, said: str
) -> None:
    make(tmp_path, "3", three)
    make(tmp_path, "4", four)
    make(tmp_path, "1.1", DAMAGED)
    done = subprocess.run(
        [programs / "test_mac"],
        env={"LD_LIBRARY_PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode == 0) == (not said), done.stderr
    assert said in done.stderr

# SPDX-License-Identifier: Apache-2.0
"""Builds the harnesses of this folder, runs each on its corpus and on, and prints what was done.

With Clang they run under libFuzzer, which looks for new paths through the code; without it driver.c only
mutates the corpus. Either way AddressSanitizer and UndefinedBehaviorSanitizer watch.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from fuzz import corpus
from support import ROOT
from support.tools import tool

LONGEST = 4096  # bytes of an input that libFuzzer makes up
GRACE = 120  # seconds: for the corpus, and one input that takes long


@dataclass(frozen=True)
class Result:
    harness: str
    seconds: float
    executed: int
    covered: int | None  # edges; None without libFuzzer
    corpus: int
    failed: bool
    output: str


def _has_libfuzzer(folder: Path) -> bool:
    if shutil.which("clang") is None or shutil.which("clang++") is None:
        return False
    source = folder / "probe.c"
    source.write_text(
        "#include <stddef.h>\n"
        "int LLVMFuzzerTestOneInput(const unsigned char *d, size_t s) { return d && s ? 0 : 0; }\n"
    )
    command = ["clang", "-fsanitize=fuzzer,address", str(source), "-o", str(folder / "probe")]
    return subprocess.run(command, capture_output=True, timeout=120).returncode == 0


def build(folder: Path, optimized: str = "-O1") -> tuple[Path, bool]:
    """The folder of the built harnesses, and whether libFuzzer drives them."""
    folder.mkdir(parents=True, exist_ok=True)
    guided = _has_libfuzzer(folder)
    cmake, ninja = tool("cmake"), tool("ninja")
    if cmake is None:
        raise SystemExit("error: no cmake: run make build")
    tree = folder / ("clang" if guided else "gcc")
    settings = [
        *("-DRDT_BUILD_FUZZERS=ON", "-DRDT_SANITIZE=fuzzer", "-DCMAKE_BUILD_TYPE=Debug"),
        *(f"-DCMAKE_{each}_FLAGS_DEBUG={optimized} -g1" for each in ("C", "CXX")),
        f"-DPython3_EXECUTABLE={sys.executable}",
        *(["-DCMAKE_C_COMPILER=clang", "-DCMAKE_CXX_COMPILER=clang++"] if guided else []),
        *(["-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={ninja}"] if ninja else []),
    ]
    for command in (
        [cmake, "-S", str(ROOT), "-B", str(tree), *settings],
        [cmake, "--build", str(tree), "--parallel", "2", "--target", "fuzzers"],
    ):
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            raise SystemExit(done.stdout + done.stderr)
    return tree / "fuzzers", guided


# A program's peak of memory begins with that of the process that started it, which may be a large one: the
# limit would be exceeded before anything was done. A shell is small.
_FROM_A_SHELL = ["/bin/sh", "-c", '"$@"; exit $?', "sh"]


def _harness(program: Path) -> str:
    return program.name.removeprefix("fuzz_")


def _command(program: Path, guided: bool, seconds: int, work: Path, kept: Path) -> list[str]:
    if not guided:
        return [str(program), f"-seconds={seconds}", f"-random={time.time_ns()}", str(kept)]
    (work / "corpus").mkdir(exist_ok=True)
    return [
        *_FROM_A_SHELL,
        str(program),
        f"-max_total_time={seconds}" if seconds else "-runs=0",
        *(f"-max_len={LONGEST}", "-timeout=30", "-rss_limit_mb=2048"),
        *("-print_final_stats=1", f"-artifact_prefix={work}/", str(work / "corpus")),
        str(kept),
    ]


def _last(pattern: str, text: str) -> int:
    found = re.findall(pattern, text)
    return int(found[-1]) if found else 0


def run(program: Path, guided: bool, seconds: int, work: Path) -> Result:
    """Runs one harness; what it found lies in `work`."""
    work.mkdir(parents=True, exist_ok=True)
    environment = {
        **os.environ,
        "FUZZ_LAST_INPUT": str(work / "last-input"),
        "ASAN_OPTIONS": "detect_leaks=1:allocator_may_return_null=1",
        "UBSAN_OPTIONS": "print_stacktrace=1",
    }
    kept = corpus.unpack(_harness(program), work / "kept")
    start = time.monotonic()
    try:
        done = subprocess.run(
            _command(program, guided, seconds, work, kept),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment,
            timeout=seconds + GRACE,
        )
        output, failed = done.stdout.decode(errors="replace"), done.returncode != 0
    except subprocess.TimeoutExpired as error:
        output = (error.stdout or b"").decode(errors="replace") + "\nit did not end"
        failed = True
    executed = _last(r"number_of_executed_units: (\d+)" if guided else r"executed (\d+)", output)
    folders = [kept, work / "corpus"]
    return Result(
        harness=_harness(program),
        seconds=time.monotonic() - start,
        executed=executed,
        covered=_last(r"cov: (\d+)", output) if guided else None,
        corpus=sum(len(list(folder.iterdir())) for folder in folders if folder.is_dir()),
        failed=failed,
        output=output,
    )


def run_all(seconds: int, jobs: int, only: list[str], folder: Path) -> tuple[list[Result], bool]:
    # To replay takes less than to optimize.
    fuzzers, guided = build(folder, "-O1" if seconds else "-O0")
    programs = [
        path
        for path in sorted(fuzzers.iterdir())
        if path.name.startswith("fuzz_") and (not only or _harness(path) in only)
    ]
    with ThreadPoolExecutor(jobs) as pool:
        results = pool.map(
            lambda path: run(path, guided, seconds, folder / "runs" / path.name), programs
        )
        return list(results), guided


def merge(program: Path, work: Path) -> None:
    """The corpus becomes the least that reaches what it, the seeds and the last run reached."""
    kept = corpus.unpack(_harness(program), work / "kept")
    seeds, least = work / "seeds", work / "least"
    for folder in (seeds, least):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    subprocess.run([program], env={**os.environ, "FUZZ_SEEDS": str(seeds)}, check=True)
    found = [str(folder) for folder in (seeds, kept, work / "corpus") if folder.is_dir()]
    command = [str(program), "-merge=1", "-use_counters=0", f"-max_len={LONGEST}", str(least)]
    subprocess.run([*command, *found], capture_output=True, check=True)
    corpus.write(_harness(program), [path.read_bytes() for path in least.iterdir()])


def table(results: list[Result]) -> str:
    rows = [f"{'harness':14}{'seconds':>9}{'executions':>14}{'edges':>8}{'corpus':>8}  outcome"]
    for each in results:
        edges = "-" if each.covered is None else str(each.covered)
        outcome = "FAILED" if each.failed else "no finding"
        rows.append(
            f"{each.harness:14}{each.seconds:9.0f}{each.executed:14,}{edges:>8}{each.corpus:8}  {outcome}"
        )
    return "\n".join(rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=600, help="for each harness")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="harnesses at a time")
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "fuzz")
    parser.add_argument("--merge", action="store_true", help="then minimise the corpus (libFuzzer)")
    parser.add_argument(
        "--add",
        type=Path,
        action="append",
        metavar="FILE",
        help="only add it to the corpus of one harness",
    )
    parser.add_argument("harness", nargs="*", help="only these")
    given = parser.parse_args()
    if given.add:
        if len(given.harness) != 1:
            parser.error("--add needs the name of one harness")
        added = {path.read_bytes() for path in given.add}
        corpus.write(given.harness[0], corpus.read(given.harness[0]) | added)
        return 0
    results, guided = run_all(given.seconds, given.jobs, given.harness, given.folder)
    for each in results:
        if each.failed:
            print(f"---- {each.harness}\n{each.output[-6000:]}")
    print(
        "libFuzzer" if guided else "no libFuzzer (apt install clang): mutations of the corpus only"
    )
    print(table(results))
    failed = [each.harness for each in results if each.failed]
    if given.merge and guided and not failed:
        for each in results:
            name = f"fuzz_{each.harness}"
            merge(given.folder / "clang" / "fuzzers" / name, given.folder / "runs" / name)
    for name in failed:
        print(f"{name}: the input lies in {given.folder}/runs/fuzz_{name}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

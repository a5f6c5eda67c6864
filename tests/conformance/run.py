# SPDX-License-Identifier: Apache-2.0
"""TensorFlow's own tests of its distributed runtime, over stock grpc and over grpc+rdma, test by test.

    conformance.py --source FOLDER --out FOLDER [options]

FOLDER is a git directory of TensorFlow's sources, at the version of the wheel, or a folder with those that
are needed. What runs is in files.txt, or --files 'tensorflow/python/eager/remote_test.py shards=2 ...'.
Results go to OUT/results.json, logs to OUT/work. The exit status is 0 if no test does worse over grpc+rdma.
docs/conformance.md explains all of it.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import importlib.metadata
import json
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from conformance import compare, counts
from conformance.compare import STOCK, FileReport, SideReport
from conformance.shards import Limits, Result, Side, Work, run, stopping
from conformance.sources import Preparation, Sources, SuiteFile, Unusable, parse

HERE = Path(__file__).resolve().parent
# Inline tensors and planned ones would take other paths than the forced one.
UNPLANNED = {"TEST_INLINE_BYTES": "0", "PLAN": "off"}
VARIANTS = {
    "default": ({}, ""),
    "dynamic": (UNPLANNED, "dynamic"),
    "read": (UNPLANNED | {"TEST_ALIAS_BYTES": "1T"}, "dynamic"),
    "bounce": (UNPLANNED | {"TEST_ABLATION": "1"}, "bounce"),
    "checked": ({"CHECKSUM": "crc32c"}, ""),
    "tcp": ({"TRANSPORTS": "tcp", "POLICY": "rdma"}, ""),
    "verbs": ({"TRANSPORTS": "verbs", "POLICY": "rdma"}, ""),
}


def side_of(variant: str) -> Side:
    """grpc+rdma with the settings of a variant."""
    settings, path = VARIANTS[variant]
    name = "grpc+rdma" if variant == "default" else f"grpc+rdma/{variant}"
    return Side(name, "grpc+rdma", settings, path)


class Suite:
    """One run of everything. Thread-safe: shards run on threads of a pool."""

    def __init__(self, chosen: argparse.Namespace, files: Sequence[SuiteFile]) -> None:
        self.chosen = chosen
        self.files = files
        self.out: Path = chosen.out
        self.sides = [Side(STOCK, "grpc"), *map(side_of, chosen.variants)]
        self.reports = {file.name: FileReport(file.path) for file in files}
        self.programs: dict[str, Path] = {}
        self.limits = Limits(chosen.test_seconds, chosen.shard_seconds, chosen.native_stacks)
        self.began = time.monotonic()
        self.lock = threading.Lock()

    @property
    def others(self) -> list[Side]:
        """All sides but stock grpc."""
        return self.sides[1:]

    def prepare(self) -> None:
        """Raises Unusable."""
        shutil.rmtree(self.out / "work", ignore_errors=True)  # of an earlier run
        keras = self.chosen.keras
        preparation = Preparation(
            Sources(self.chosen.source), Sources(keras.parent) if keras else None, self.out
        )
        for file in self.files:
            self.programs[file.name] = preparation.prepare(file)

    def work(self, file: SuiteFile, shard: int) -> Work:
        return Work(self.programs[file.name], self.out, shard, file.shards, file.v1)

    def in_pool(self, tasks: Sequence[Callable[[], object]]) -> None:
        with concurrent.futures.ThreadPoolExecutor(self.chosen.jobs) as pool:
            try:
                for done in [pool.submit(task) for task in tasks]:
                    done.result()
            except BaseException:  # also an interrupt
                stopping.set()
                pool.shutdown(wait=False, cancel_futures=True)
                raise

    def run(self) -> None:
        """All shards, then what differs once more."""
        self.in_pool(
            [
                lambda file=file, shard=shard: self.run_shard(file, shard)  # type: ignore[misc]
                for file in self.files
                for shard in range(file.shards)
            ]
        )
        self.in_pool(
            [
                lambda file=file, side=side, test=test: self.confirm(file, side, test)  # type: ignore[misc]
                for file in self.files
                for side in self.others
                for test, kind in list(compare.verdicts(self.reports[file.name], side.name))
                if kind in ("bad", "stock") and compare.is_test(test)
            ]
        )
        for file in self.files:
            compare.check(self.reports[file.name], self.sides, file.tensors)
        self.save()

    def run_shard(self, file: SuiteFile, shard: int) -> None:
        """On all sides, one after the other."""
        work = self.work(file, shard)
        for side in self.sides:
            left = self.began + self.chosen.total_seconds - time.monotonic()
            results, seconds = run(work, side, self.limits) if left > 0 else ({}, 0.0)
            folders = self.out.glob(f"work/{file.name}.{side.name.replace('/', '-')}.*")
            with self.lock:
                report = self.reports[file.name].sides.setdefault(side.name, SideReport())
                for test, result in results.items():
                    name = test if compare.is_test(test) else f"{test[:-1]} of shard {shard})"
                    report.tests[name] = result
                report.seconds += seconds
                report.shards_left += left <= 0
                report.plugin = counts.of(folders)
                self.save()
            bad = [test for test, result in results.items() if compare.is_bad(result)]
            self.say(
                f"{file.name} {shard + 1}/{file.shards} {side.name}: {len(results)} results, "
                f"{seconds:.0f} s{''.join(f', bad: {test}' for test in bad)}"
            )

    def confirm(self, file: SuiteFile, side: Side, test: str) -> None:
        """Runs a test again, alone, on both sides in turn; and its shard, if it fails only among others."""
        report = self.reports[file.name]
        shard = (report.runs(side.name, test) or report.runs(STOCK, test))[0]["shard"]
        for number in range(self.chosen.confirm):
            for again in (self.sides[0], side):
                self.repeat(file, again, shard, test, (test,), f".{side.name}.{number}.{test}")
        first = report.runs(side.name, test)
        if self.chosen.confirm and sum(map(compare.is_bad, first)) == 1:
            for again in (self.sides[0], side):
                self.repeat(file, again, shard, test, (), f".{side.name}.all.{test}")

    def repeat(
        self, file: SuiteFile, side: Side, shard: int, test: str, names: tuple[str, ...], label: str
    ) -> None:
        if time.monotonic() - self.began > self.chosen.total_seconds:
            return
        work = self.work(file, shard)
        work = Work(work.program, work.out, shard, work.shards, work.v1, names, f".again{label}")
        results, _ = run(work, side, self.limits)
        lost: Result = {"status": "crash", "seconds": 0.0, "text": "it did not run", "shard": shard}
        result = results.get(test, lost)
        with self.lock:
            runs = self.reports[file.name].again.setdefault(side.name, {}).setdefault(test, [])
            runs.append(result)
            self.save()
        self.say(f"again: {file.name} {test} {side.name}: {result['status']}")

    def say(self, text: str) -> None:
        print(f"{time.monotonic() - self.began:6.0f} s  {text}", file=sys.stderr, flush=True)

    def save(self) -> None:
        """Also while it runs, so that what was found is not lost."""
        names = [side.name for side in self.others]
        content = {
            "versions": {
                name: importlib.metadata.version(name)
                for name in ("rdmatensor", "tensorflow-cpu", "tensorflow", "tf_keras")
                if any(True for _ in importlib.metadata.distributions(name=name))
            },
            "sides": {side.name: dict(side.settings) for side in self.sides},
            "environment": {
                name: value for name, value in os.environ.items() if name.startswith("RDMATENSOR_")
            },
            "files": {name: report.as_json(names) for name, report in self.reports.items()},
        }
        new = self.out / "results.json.new"
        new.write_text(json.dumps(content, indent=1))
        new.replace(self.out / "results.json")

    def tell(self) -> int:
        """Prints what was found; how many differences and errors there are."""
        reports = list(self.reports.values())
        print(*compare.table(reports, self.sides), sep="\n")
        for report in reports:
            for side in self.others:
                for line in compare.details(report, side.name):
                    print(line)
            for error in report.errors:
                print(f"ERROR: {report.path}: {error}")
        found = compare.failures(reports, self.others)
        print(f"{found} differences and errors; {self.out / 'results.json'}")
        return found


def folder(text: str) -> Path:
    return Path(text).resolve()


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--source", required=True, type=folder, help="TensorFlow's sources")
    parser.add_argument("--keras", type=folder, help="the folder tf_keras of TF-Keras' sources")
    parser.add_argument("--out", required=True, type=folder)
    parser.add_argument("--files", default="", help="files and their options, as in files.txt")
    parser.add_argument(
        "--variants", nargs="+", default=["default"], choices=VARIANTS, metavar="VARIANT",
        help=f"settings of grpc+rdma to compare with grpc: {', '.join(VARIANTS)}",
    )  # fmt: skip
    parser.add_argument("--jobs", type=int, default=2, help="shards at a time")
    parser.add_argument("--confirm", type=int, default=3, help="runs of a test that differs")
    parser.add_argument("--test-seconds", type=float, default=120, help="limit for a test")
    parser.add_argument("--shard-seconds", type=float, default=900, help="limit for a shard")
    parser.add_argument("--total-seconds", type=float, default=6 * 3600, help="limit for all")
    parser.add_argument("--native-stacks", action="store_true", help="of what hangs, by gdb")
    return parser.parse_args()


def main() -> int:
    """See the module."""
    chosen = arguments()
    try:
        files = parse(chosen.files or (HERE / "files.txt").read_text())
        chosen.out.mkdir(parents=True, exist_ok=True)
        suite = Suite(chosen, files)
        suite.prepare()
    except Unusable as error:
        print(f"conformance: {error}", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    suite.run()
    return 1 if suite.tell() else 0


if __name__ == "__main__":
    sys.exit(main())

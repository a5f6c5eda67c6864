# SPDX-License-Identifier: Apache-2.0
"""Everything at random, under random faults, for as long as it is told: make test SUITE=chaos.

    python -m faults.chaos [--seconds 300] [--seed N] [--parts training,api,gossip] [--transport shm]
    python -m faults.chaos --lab [--seconds 300] [--seed N]     the part api over verbs, in a guest

Each part runs for its share of the time. Every operation ends, well or with an error of its documented kind;
what comes back is what was sent; training computes what it computes without faults; and afterwards nothing
is held that was not before. Ends with status 1 and the seed if not so: the same seed does the same again, as
far as time permits.
"""

from __future__ import annotations

import argparse
import importlib
import os
import random
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

PARTS = ("training", "api", "gossip")
# Of a guest: to import what is needed, and for an operation that ends with its last time-out.
LAB_SECONDS = 300.0


def run_part(
    part: str, seconds: float, seed: int, transport: str, tell: Callable[[str], object]
) -> Counter[str]:
    """How often what happened in one part."""
    # The one with TensorFlow takes long to import.
    module = importlib.import_module(f"faults.chaos_{part}")
    counts: Counter[str] = module.run(seconds, seed, tell, transport)
    return counts


def table(counts: Counter[str]) -> str:
    """One line for each count."""
    width = max((len(name) for name in counts), default=0)
    return "\n".join(f"  {name:<{width}}  {count:>9}" for name, count in sorted(counts.items()))


def in_lab(seconds: float, seed: int, verbose: bool) -> int:
    """The same over verbs, in a guest; its exit status. Without training: there TensorFlow alone would take a
    minute to be imported."""
    from rdmatensor.softroce import Lab

    command = [sys.executable, "-m", "faults.chaos", "--parts", "api", "--transport", "verbs"]
    command += ["--seconds", str(seconds), "--seed", str(seed), *["--verbose"] * verbose]
    with Lab(1, say=print) as lab:
        done = lab.hosts[0].run(command, timeout=seconds + LAB_SECONDS, check=False)
    print(done.stdout, done.stderr, sep="", end="")
    return done.returncode


def main() -> int:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 31))
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--transport", default="shm")
    parser.add_argument("--lab", action="store_true")
    parser.add_argument("--verbose", action="store_true")
    chosen = parser.parse_args()
    if chosen.lab:
        return in_lab(chosen.seconds, chosen.seed, chosen.verbose)
    parts = chosen.parts.split(",")
    print(f"chaos: seed {chosen.seed}, {chosen.seconds:.0f} s", flush=True)

    def tell(line: str) -> None:
        if chosen.verbose:
            print(line, flush=True)

    for part in parts:
        begin = time.monotonic()
        try:
            counts = run_part(
                part, chosen.seconds / len(parts), chosen.seed, chosen.transport, tell
            )
        except Exception:
            traceback.print_exc()
            print(f"chaos: {part} FAILED with --seed {chosen.seed} --parts {part}", flush=True)
            return 1
        print(f"{part}: {time.monotonic() - begin:.0f} s\n{table(counts)}", flush=True)
    print(f"chaos: passed, seed {chosen.seed}")
    return 0


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    # Sessions keep threads that wait for ever for tasks that were killed.
    os._exit(status)

# SPDX-License-Identifier: Apache-2.0
"""Choose the QEMU that runs guests: the installed one, or a newer one in the cache.

QEMU before 8.1 has a race when it emulates several processors and a guest's kernel patches its own code.
Linux does that all the time, so such a guest panics now and then. With an older QEMU and no KVM, each guest
gets one processor. Debian 12 has QEMU 7.2; there, the lab fetches a newer one from backports. It needs the
libraries of the installed QEMU and is a third faster.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from . import cache
from .errors import Unavailable
from .packages import DEBIAN_KEYRING, Apt, System

PROGRAM = "qemu-system-x86_64"
PACKAGE = "qemu-system-x86"
SOUND = (8, 1)
_FOLDER = "qemu"
_NEWER = (PACKAGE, "qemu-system-data", "seabios", "libfuse3-3", "libbpf1")
_SECONDS = 30


@dataclass(frozen=True)
class Emulator:
    """A working QEMU. `options` name the folders of its firmware."""

    program: str
    version: tuple[int, int]
    options: tuple[str, ...] = ()
    libraries: Path | None = None

    @property
    def sound(self) -> bool:
        """Whether it emulates several processors without the race."""
        return self.version >= SOUND

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables to start it with."""
        if self.libraries is None:
            return dict(os.environ)
        path = os.environ.get("LD_LIBRARY_PATH", "")
        return {**os.environ, "LD_LIBRARY_PATH": f"{self.libraries}:{path}".rstrip(":")}


def installed() -> Emulator | None:
    """Return the QEMU in PATH, or None if none works."""
    program = shutil.which(PROGRAM)
    return _tried(program) if program else None


def kept() -> Emulator | None:
    """Return the QEMU in the cache, or None if none works."""
    home = cache.folder() / _FOLDER
    if not home.is_dir():
        return None
    options = ("-L", str(home / "usr/share/qemu"), "-L", str(home / "usr/share/seabios"))
    libraries = home / "usr/lib/x86_64-linux-gnu"
    return _tried(str(home / "usr/bin" / PROGRAM), options, libraries)


def _tried(
    program: str, options: tuple[str, ...] = (), libraries: Path | None = None
) -> Emulator | None:
    candidate = Emulator(program, (0, 0), options, libraries)
    try:
        done = subprocess.run(
            [program, "--version"],
            env=candidate.environment,
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r"version (\d+)\.(\d+)", done.stdout)
    if done.returncode != 0 or not match:
        return None
    return Emulator(program, (int(match[1]), int(match[2])), options, libraries)


def ensure(kvm: bool, say: Callable[[str], None]) -> Emulator:
    """Return the best QEMU. Fetches a newer one if it must emulate and the installed one has the race.

    `kvm` means that it need not emulate. `say` announces slow steps and problems. Raises Unavailable if there
    is no QEMU.
    """
    here = installed()
    if here and (kvm or here.sound):
        return here
    newer = kept() or (_fetched(say) if fetchable() else None)
    best = newer or here
    if best is None:
        raise Unavailable(
            f"{PROGRAM} is not installed: apt-get install --no-install-recommends {PACKAGE}"
        )
    return best


def fetchable() -> bool:
    """Return whether this system can fetch a newer QEMU."""
    system = System.here()
    return (system.name, system.codename) == ("debian", "bookworm") and DEBIAN_KEYRING.exists()


def _fetched(say: Callable[[str], None]) -> Emulator | None:
    with cache.locked() as folder:
        found = kept()  # another run may have fetched it while this one waited
        if found is None:
            say("fetching a newer QEMU (about 15 MB, only once)")
            try:
                _fetch(folder)
            except Unavailable as error:
                say(f"using the installed QEMU with one processor per guest: {error}")
                return None
            found = kept()
    if found is None:
        say(f"the newer QEMU does not start; it needs the libraries that {PACKAGE} depends on")
    return found


def _fetch(folder: Path) -> None:
    suites = ["bookworm-backports", "bookworm"]
    apt = Apt(folder / "apt", suites)
    apt.update()
    with cache.new_folder(folder / _FOLDER) as home:
        for package in _NEWER:
            apt.fetch(package, home, suites[0])

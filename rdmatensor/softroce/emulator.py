# SPDX-License-Identifier: Apache-2.0
"""Which QEMU runs guests: the installed one, or a newer one kept in the cache.

Before 8.1, QEMU's emulation of several processors loses a race when a guest's kernel changes its own
code, which Linux does all the time: now and then such a guest panics. So an older QEMU that has to
emulate gives each guest one processor. On Debian 12, whose QEMU is 7.2, a newer one is fetched from its
backports instead; it needs the libraries of the installed one, and is a third faster, too.
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
    """A QEMU that starts. `options` tell it where its firmware is."""

    program: str
    version: tuple[int, int]
    options: tuple[str, ...] = ()
    libraries: Path | None = None

    @property
    def sound(self) -> bool:
        """Whether it can emulate more than one processor."""
        return self.version >= SOUND

    @property
    def environment(self) -> dict[str, str]:
        """The variables it is to be started with."""
        if self.libraries is None:
            return dict(os.environ)
        path = os.environ.get("LD_LIBRARY_PATH", "")
        return {**os.environ, "LD_LIBRARY_PATH": f"{self.libraries}:{path}".rstrip(":")}


def installed() -> Emulator | None:
    """The QEMU of PATH; None when there is none that starts."""
    program = shutil.which(PROGRAM)
    return _tried(program) if program else None


def kept() -> Emulator | None:
    """The QEMU in the cache; None when there is none that starts."""
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
    """The best QEMU there is; a newer one is fetched if the installed one emulates badly.

    `kvm`: it is not to emulate. `say` gets a line when something long begins or something is amiss.
    Unavailable when there is none.
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
    """Whether this is a system for which there is a newer QEMU."""
    system = System.here()
    return (system.name, system.codename) == ("debian", "bookworm") and DEBIAN_KEYRING.exists()


def _fetched(say: Callable[[str], None]) -> Emulator | None:
    with cache.locked() as folder:
        found = kept()  # by another run, while this one waited
        if found is None:
            say("fetching a newer QEMU (about 15 MB, once)")
            try:
                _fetch(folder)
            except Unavailable as error:
                say(f"using the installed QEMU, with one processor for each guest: {error}")
                return None
            found = kept()
    if found is None:
        say(f"the newer QEMU does not start; it needs the libraries of the package {PACKAGE}")
    return found


def _fetch(folder: Path) -> None:
    suites = ["bookworm-backports", "bookworm"]
    apt = Apt(folder / "apt", suites)
    apt.update()
    with cache.new_folder(folder / _FOLDER) as home:
        for package in _NEWER:
            apt.fetch(package, home, suites[0])

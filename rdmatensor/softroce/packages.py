# SPDX-License-Identifier: Apache-2.0
"""Download packages with apt into a folder, without root, without installing them.

apt runs with its own sources, lists and package cache, so the host's apt configuration does not change. It
verifies signatures as usual.
"""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from .errors import Unavailable

DEBIAN_KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
DEBIAN_MIRROR = "http://deb.debian.org/debian"
# This is long enough for slow mirrors and keeps a dead one from hanging a run.
DOWNLOAD_SECONDS = 900
NO_NETWORK = "the download needs the network, once; later runs use the cache"


@dataclass(frozen=True)
class System:
    """The name and release of a distribution."""

    name: str
    codename: str

    @classmethod
    def here(cls) -> System:
        """Return this machine's distribution."""
        try:
            values = platform.freedesktop_os_release()
        except OSError:
            values = {}
        return cls(values.get("ID", "unknown"), values.get("VERSION_CODENAME", ""))


def kernel_suites(system: System) -> list[str]:
    """Return the Debian suites to take the kernel from, best first, or [] to use the host's sources.

    The guest's kernel may be newer than the host's. Bookworm uses 6.12 of its backports, because 6.12 is
    twice as fast as 6.1 in emulation.
    """
    if not DEBIAN_KEYRING.exists():
        return []
    if system.name == "debian" and system.codename == "bookworm":
        return ["bookworm-backports", "bookworm"]
    if system.name == "debian" and system.codename:
        return [system.codename]
    return ["trixie"]


class Apt:
    """apt with its own configuration below `folder`. It is not thread-safe: use it under cache.locked()."""

    def __init__(self, folder: Path, suites: list[str]) -> None:
        """Use Debian's `suites`, or the host's sources if there are none.

        Raises Unavailable if this machine has no apt.
        """
        if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
            raise Unavailable(
                f"{System.here().name} has no apt-get and dpkg-deb, but the guest's kernel comes from "
                "Debian or Ubuntu packages. Use a Debian container, or a machine whose kernel has "
                "rdma_rxe (see `rdmatensor softroce doctor`)"
            )
        self._folder = folder
        self._suites = suites
        for name in ("lists/partial", "archives/partial"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / "status").touch()
        options = {
            "Dir::State::lists": f"{folder}/lists/",
            "Dir::State::status": f"{folder}/status",
            "Dir::Cache": f"{folder}/",
            "Dir::Cache::archives": f"{folder}/archives/",
            "APT::Sandbox::User": "",  # apt's own user cannot read a cache below /root
            "Acquire::Retries": "1",
            "Acquire::Languages": "none",
            "APT::Update::Post-Invoke-Success": "",
        }
        if suites:
            sources = folder / "sources.list"
            sources.write_text("".join(self._lines(suites)))
            options |= {"Dir::Etc::sourcelist": str(sources), "Dir::Etc::sourceparts": "/dev/null"}
        self._options = [word for k, v in options.items() for word in ("-o", f"{k}={v}")]

    @staticmethod
    def _lines(suites: list[str]) -> list[str]:
        mirror = debian_mirror()
        return [f"deb [signed-by={DEBIAN_KEYRING}] {mirror} {suite} main\n" for suite in suites]

    def _run(self, *command: str, cwd: Path | None = None) -> str:
        program, *arguments = command
        try:
            done = subprocess.run(
                [program, *self._options, *arguments],
                cwd=cwd,
                capture_output=True,
                text=True,
                timeout=DOWNLOAD_SECONDS,
                stdin=subprocess.DEVNULL,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise Unavailable(
                f"{program} {arguments[0]} did not finish in {DOWNLOAD_SECONDS} s; {NO_NETWORK}"
            ) from error
        if done.returncode != 0:
            lines = [line for line in done.stderr.splitlines() if line.startswith("E:")]
            reason = "\n  ".join(lines) or done.stderr.strip()
            raise Unavailable(f"{' '.join(command)} failed; {NO_NETWORK}\n  {reason}")
        return done.stdout

    def update(self) -> None:
        """Fetch the package lists. Raises Unavailable if that fails."""
        self._run("apt-get", "update", "-q")

    def depends(self, package: str, suite: str | None) -> list[str]:
        """Return the packages that `package` depends on, or [] if it does not exist."""
        name = f"{package}/{suite}" if suite else package
        try:
            text = self._run("apt-cache", "depends", "--no-recommends", "--no-suggests", name)
        except Unavailable:
            return []
        return re.findall(r"^\s+Depends: ([^\s<]+)", text, re.MULTILINE)

    def fetch(self, package: str, into: Path, suite: str | None = None) -> None:
        """Download a package, from `suite` if possible, and unpack it below `into`.

        Raises Unavailable if that fails.
        """
        downloads = self._folder / "archives"
        preferred = ["-o", f"APT::Default-Release={suite}"] if suite else []
        self._run("apt-get", *preferred, "download", "-q", package, cwd=downloads)
        files = sorted(downloads.glob(f"{package}_*.deb"), key=lambda file: file.stat().st_mtime)
        if not files:
            raise Unavailable(f"apt-get download {package} left no package in {downloads}")
        unpack = subprocess.run(
            ["dpkg-deb", "--extract", str(files[-1]), str(into)],
            capture_output=True,
            text=True,
            timeout=DOWNLOAD_SECONDS,
            check=False,
        )
        for file in files:  # each may have 100 MB
            file.unlink()
        if unpack.returncode != 0:
            raise Unavailable(f"cannot unpack {package}: {unpack.stderr.strip()}")


def debian_mirror() -> str:
    """Return the Debian mirror that the host's apt uses, or Debian's main mirror."""
    listing = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(ORIGIN) $(REPO_URI) $(COMPONENT)"],
        capture_output=True,
        text=True,
        check=False,
    )
    uris = re.findall(r"^\S* (\S+/debian)/? main$", listing.stdout, re.MULTILINE)
    return uris[0] if uris else DEBIAN_MIRROR

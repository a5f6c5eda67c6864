# SPDX-License-Identifier: Apache-2.0
"""The guest's kernel: an image and the few modules that SoftRoCE needs, in loading order."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from . import bzimage, cache
from .errors import Unavailable
from .packages import Apt, System, kernel_suites

# No guest boots without these.
REQUIRED = ["9p", "9pnet_virtio", "overlay", "virtio_net", "virtio_console", "rdma_rxe", "rdma_ucm"]
# A kernel may lack these. rxe requests crc32 from the crypto API by name, so modinfo does not list it. A
# single host uses dummy as its network card. Host.netem() needs sch_netem.
OPTIONAL = ["crc32_generic", "dummy", "sch_netem"]
_SIGNED = b"~Module signature appended~\n"
# A cached kernel of another layout is replaced.
LAYOUT = [3, REQUIRED, OPTIONAL]


@dataclass(frozen=True)
class Kernel:
    """The files that a guest boots. They belong to the cache."""

    release: str
    image: Path
    unpacked: Path | None  # the same kernel as an ELF file, which boots faster in emulation
    modules: tuple[Path, ...]
    busybox: Path


def cached(folder: Path) -> Kernel | None:
    """Return the kernel in the cache folder, or None if there is none of the current layout."""
    home = folder / "kernel"
    try:
        about = json.loads((home / "kernel.json").read_text())
    except (OSError, ValueError):
        return None
    if about.get("layout") != LAYOUT:
        return None
    modules = tuple(home / "modules" / name for name in about["modules"])
    unpacked = home / "vmlinux" if (home / "vmlinux").exists() else None
    return Kernel(about["release"], home / "vmlinuz", unpacked, modules, home / "busybox")


def ensure(say: Callable[[str], None], again: bool = False) -> Kernel:
    """Return the cached kernel, and fetch it first if it is missing or `again` is true.

    Processes may call this at the same time. `say` announces slow steps. Raises Unavailable if there is no
    way to get a kernel.
    """
    found = None if again else cached(cache.folder())
    if found:
        return found
    with cache.locked() as folder:
        found = None if again else cached(folder)
        if found is None:
            _fetch(folder, say)
            found = cached(folder)
    if found is None:
        raise Unavailable(f"cannot read the kernel that was just stored in {folder}")
    return found


def _fetch(folder: Path, say: Callable[[str], None]) -> None:
    suites = kernel_suites(System.here())
    apt = Apt(folder / "apt", suites)
    say("fetching a kernel for the guest (about 110 MB, only once)")
    apt.update()
    packages = _kernel_packages(apt, suites)
    with cache.new_folder(folder / "kernel") as home:
        tree = home / "tree"
        for package in [*packages, "busybox-static"]:
            apt.fetch(package, tree)
        _arrange(tree, home)
        shutil.rmtree(tree)


def _kernel_packages(apt: Apt, suites: list[str]) -> list[str]:
    """Return the packages of the newest kernel in the first suite that has one."""
    for suite in suites:
        names = apt.depends("linux-image-amd64", suite)
        images = [name for name in names if re.match(r"linux-image-\d", name)]
        if images:
            return images[:1]
    # Ubuntu splits its kernel into three packages and puts rdma_rxe into modules-extra.
    for meta in ("linux-image-generic", "linux-image-amd64", "linux-image-virtual"):
        images = [name for name in apt.depends(meta, None) if re.match(r"linux-image-\d", name)]
        if images and meta == "linux-image-amd64":
            return images[:1]
        if images:
            release = images[0].removeprefix("linux-image-")
            return [images[0], f"linux-modules-{release}", f"linux-modules-extra-{release}"]
    raise Unavailable(
        "apt's sources have no kernel package (linux-image-amd64 or linux-image-generic); on other "
        "distributions than Debian and Ubuntu, install debian-archive-keyring to use Debian's kernel"
    )


def _arrange(tree: Path, home: Path) -> None:
    """Move the needed files out of the unpacked packages."""
    images = sorted((tree / "boot").glob("vmlinuz-*"))
    if not images:
        raise Unavailable("the kernel package has no boot/vmlinuz-*")
    release = images[0].name.removeprefix("vmlinuz-")
    shutil.move(images[0], home / "vmlinuz")
    (home / "vmlinuz").chmod(0o644)
    unpacked = bzimage.unpack((home / "vmlinuz").read_bytes())
    if unpacked:
        (home / "vmlinux").write_bytes(unpacked)
    shutil.move(_find(tree, "busybox"), home / "busybox")
    source = _find(tree, f"modules/{release}")
    (home / "modules").mkdir()
    names: list[str] = []
    for name, data in ModuleTree(source).load_order(REQUIRED, OPTIONAL):
        # The numbers make alphabetical order the loading order.
        names.append(f"{len(names):02}-{name}.ko")
        (home / "modules" / names[-1]).write_bytes(data)
    about = {"layout": LAYOUT, "release": release, "modules": names}
    (home / "kernel.json").write_text(json.dumps(about, indent=1))


def _find(tree: Path, name: str) -> Path:
    """Find bin/NAME or lib/NAME, which distributions put in different places."""
    for parent in ("bin", "lib", "usr/bin", "usr/lib"):
        if (tree / parent / name).exists():
            return tree / parent / name
    raise Unavailable(f"the packages have no {name}")


class ModuleTree:
    """The folder lib/modules/RELEASE of an unpacked package, before depmod has run."""

    def __init__(self, folder: Path) -> None:
        self._files = {_module_name(path): path for path in folder.rglob("*.ko*") if path.is_file()}
        text = (folder / "modules.builtin").read_text()
        self._builtin = {_module_name(Path(line)) for line in text.split()}

    def load_order(self, required: list[str], optional: list[str]) -> list[tuple[str, bytes]]:
        """Return (name, contents) of the modules and their dependencies, dependencies first.

        Raises Unavailable if the kernel lacks a required module.
        """
        loaded: dict[str, bytes] = {}
        for name in [*required, *optional]:
            self._add(name, loaded, name in required)
        return list(loaded.items())

    def _add(self, name: str, loaded: dict[str, bytes], required: bool) -> None:
        name = name.replace("-", "_")
        if name in loaded or name in self._builtin:
            return
        if name not in self._files:
            if required:
                raise Unavailable(f"the kernel has no module {name}, which SoftRoCE needs")
            return
        data = bzimage.decompress(self._files[name].read_bytes())
        # The modinfo section consists of NUL-terminated key=value strings.
        match = re.search(rb"\0depends=([^\0]*)\0", data)
        for needed in match[1].decode().split(",") if match else []:
            if needed:
                self._add(needed, loaded, True)
        loaded[name] = without_signature(data)


def without_signature(module: bytes) -> bytes:
    """Remove a module's signature. apt has verified the package; a second check is slow in emulation."""
    if not module.endswith(_SIGNED):
        return module
    end = len(module) - len(_SIGNED)
    # struct module_signature has 12 bytes. The last four hold the length of the signature before it.
    length = int.from_bytes(module[end - 4 : end], "big")
    return module[: end - 12 - length]


def _module_name(path: Path) -> str:
    return path.name.partition(".ko")[0].replace("-", "_")

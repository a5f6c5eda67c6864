# SPDX-License-Identifier: Apache-2.0
"""The guest's kernel: an image, and the few modules that SoftRoCE needs, in loading order."""

from __future__ import annotations

import gzip
import json
import lzma
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from . import bzimage, cache
from .errors import Unavailable
from .packages import Apt, System, kernel_suites

# Without these no guest boots.
REQUIRED = ["9p", "9pnet_virtio", "overlay", "virtio_net", "virtio_console", "rdma_rxe", "rdma_ucm"]
# dummy: the netdev of a single host. The rest is for tests. A kernel may lack them.
# rxe asks the crypto API for crc32 by name, so no dependency tells of it.
OPTIONAL = ["crc32_generic", "dummy", "sch_netem"]
_SIGNED = b"~Module signature appended~\n"
# When it changes, cached kernels are made again.
LAYOUT = [3, REQUIRED, OPTIONAL]


@dataclass(frozen=True)
class Kernel:
    """What a guest boots. The files belong to the cache and stay while it does."""

    release: str
    image: Path
    unpacked: Path | None  # the same as an ELF file, quicker to boot in emulation
    modules: tuple[Path, ...]
    busybox: Path


def cached(folder: Path) -> Kernel | None:
    """The kernel in the cache folder, None when there is none or of an older layout."""
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
    """The cached kernel; fetched first when there is none, or `again`. Safe to call concurrently.

    `say` gets a line when something long begins. Unavailable when it cannot be had.
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
        raise Unavailable(f"the kernel just stored in {folder} cannot be read back")
    return found


def _fetch(folder: Path, say: Callable[[str], None]) -> None:
    suites = kernel_suites(System.here())
    apt = Apt(folder / "apt", suites)
    say("fetching a kernel for the guest (about 110 MB, once)")
    apt.update()
    packages = _kernel_packages(apt, suites)
    with cache.new_folder(folder / "kernel") as home:
        tree = home / "tree"
        for package in [*packages, "busybox-static"]:
            apt.fetch(package, tree)
        _arrange(tree, home)
        shutil.rmtree(tree)


def _kernel_packages(apt: Apt, suites: list[str]) -> list[str]:
    """The packages with the newest kernel of the first suite that has one."""
    for suite in suites:
        names = apt.depends("linux-image-amd64", suite)
        images = [name for name in names if re.match(r"linux-image-\d", name)]
        if images:
            return images[:1]
    # Ubuntu splits its kernel over three packages; rdma_rxe is in modules-extra.
    for meta in ("linux-image-generic", "linux-image-amd64", "linux-image-virtual"):
        images = [name for name in apt.depends(meta, None) if re.match(r"linux-image-\d", name)]
        if images and meta == "linux-image-amd64":
            return images[:1]
        if images:
            release = images[0].removeprefix("linux-image-")
            return [images[0], f"linux-modules-{release}", f"linux-modules-extra-{release}"]
    raise Unavailable(
        "no kernel package in apt's sources (linux-image-amd64 or linux-image-generic); on other "
        "distributions than Debian and Ubuntu, install debian-archive-keyring for Debian's kernel"
    )


def _arrange(tree: Path, home: Path) -> None:
    """Takes what is needed out of unpacked packages."""
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
        # Numbered, so that the order of names is the order of loading.
        names.append(f"{len(names):02}-{name}.ko")
        (home / "modules" / names[-1]).write_bytes(data)
    about = {"layout": LAYOUT, "release": release, "modules": names}
    (home / "kernel.json").write_text(json.dumps(about, indent=1))


def _find(tree: Path, name: str) -> Path:
    """bin/NAME or lib/NAME, wherever the distribution puts them."""
    for parent in ("bin", "lib", "usr/bin", "usr/lib"):
        if (tree / parent / name).exists():
            return tree / parent / name
    raise Unavailable(f"the packages have no {name}")


class ModuleTree:
    """The folder lib/modules/RELEASE of an unpacked package, where depmod has not run."""

    def __init__(self, folder: Path) -> None:
        self._files = {_module_name(path): path for path in folder.rglob("*.ko*") if path.is_file()}
        text = (folder / "modules.builtin").read_text()
        self._builtin = {_module_name(Path(line)) for line in text.split()}

    def load_order(self, required: list[str], optional: list[str]) -> list[tuple[str, bytes]]:
        """(name, contents) of modules and of what they depend on, dependencies first.

        Unavailable when the kernel has no such required module.
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
        data = _decompressed(self._files[name])
        # The modinfo section is a row of NUL-terminated key=value strings.
        match = re.search(rb"\0depends=([^\0]*)\0", data)
        for needed in match[1].decode().split(",") if match else []:
            if needed:
                self._add(needed, loaded, True)
        loaded[name] = without_signature(data)


def without_signature(module: bytes) -> bytes:
    """The module alone. Its package was verified; checking it again is slow in emulation."""
    if not module.endswith(_SIGNED):
        return module
    end = len(module) - len(_SIGNED)
    # struct module_signature: 12 bytes, the last four are the length of what precedes it.
    length = int.from_bytes(module[end - 4 : end], "big")
    return module[: end - 12 - length]


def _module_name(path: Path) -> str:
    return path.name.partition(".ko")[0].replace("-", "_")


def _decompressed(path: Path) -> bytes:
    data = path.read_bytes()
    if path.suffix == ".xz":
        return lzma.decompress(data)
    if path.suffix == ".gz":
        return gzip.decompress(data)
    if path.suffix == ".zst":
        if shutil.which("zstd") is None:
            raise Unavailable("this kernel's modules need zstd: apt-get install zstd")
        return subprocess.run(["zstd", "-dc"], input=data, capture_output=True, check=True).stdout
    return data

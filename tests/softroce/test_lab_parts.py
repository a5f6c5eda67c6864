# SPDX-License-Identifier: Apache-2.0
"""Parts of the lab that need no guest: frames, archives, the cache, downloads that fail."""

from __future__ import annotations

import gzip
import random
import subprocess
import sys
from pathlib import Path

import pytest

from rdmatensor.softroce import Lab, LabError, bzimage, cache, initramfs, kernel
from rdmatensor.softroce.guest import protocol
from softroce.processes import Softroce


def test_frames_survive_any_division() -> None:
    frames = [(protocol.STDOUT, 7, b"x" * 3000), (protocol.EXIT, 1 << 31, b"-9"), (1, 0, b"")]
    stream = b"".join(protocol.pack(*frame) for frame in frames)
    chance = random.Random(1)
    for _ in range(200):
        parser, found, rest = protocol.Parser(), [], stream
        while rest:
            size = chance.randrange(1, 700)
            found += parser.feed(rest[:size])
            rest = rest[size:]
        assert found == frames


def test_a_frame_that_is_too_long_is_refused() -> None:
    with pytest.raises(protocol.BrokenStream, match="4294967295"):
        protocol.Parser().feed(b"\xff" * protocol.HEADER_BYTES)


def test_commands_survive_packing() -> None:
    command = (["sh", "-c", "two\nlines", "", "\udcff"], {"A": "b=c", "E": ""}, "/a b", "24 80")
    assert protocol.unpack_start(protocol.pack_start(*command)) == command


def test_archive_is_what_cpio_reads(tmp_path: Path) -> None:
    found = kernel.cached(cache.folder())
    if found is None:
        pytest.skip("no busybox in the cache to read it with")
    files = {"bin": (0o040755, b""), "bin/tool": (0o100755, b"odd"), "text": (0o100644, b"1234")}
    (tmp_path / "archive").write_bytes(initramfs.archive(files))
    subprocess.run([found.busybox, "cpio", "-idF", "archive"], cwd=tmp_path, check=True, timeout=60)
    assert (tmp_path / "bin/tool").read_bytes() == b"odd"
    assert (tmp_path / "bin/tool").stat().st_mode == 0o100755
    assert (tmp_path / "text").read_bytes() == b"1234"


def test_modules_load_after_what_they_need(tmp_path: Path) -> None:
    modules = {"top": "middle,base", "middle": "base", "base": "", "other-one": "built_in"}
    for name, needs in modules.items():
        text = b"ELF\0license=GPL\0depends=" + needs.encode() + b"\0name=" + name.encode() + b"\0"
        (tmp_path / f"{name}.ko.gz").write_bytes(gzip.compress(text))
    (tmp_path / "modules.builtin").write_text("kernel/built-in.ko\n")
    tree = kernel.ModuleTree(tmp_path)
    names = [name for name, _ in tree.load_order(["top", "other_one"], ["absent"])]
    assert names == ["base", "middle", "top", "other_one"]
    with pytest.raises(LabError, match="no module absent"):
        tree.load_order(["absent"], [])


def test_signatures_are_cut_off_exactly() -> None:
    module, signature = b"the module" * 100, b"s" * 300
    trailer = bytes(8) + len(signature).to_bytes(4, "big") + b"~Module signature appended~\n"
    assert kernel.without_signature(module + signature + trailer) == module
    assert kernel.without_signature(module) == module


@pytest.mark.parametrize(
    "image", [b"", b"\x7fELF", bytes(4096), bytes(514) + b"HdrS" + bytes(4096)]
)
def test_what_is_no_compressed_kernel_is_left_alone(image: bytes) -> None:
    assert bzimage.unpack(image) is None


def test_a_folder_appears_complete_or_not_at_all(tmp_path: Path) -> None:
    target = tmp_path / "target"
    with cache.new_folder(target) as draft:
        (draft / "old").touch()
        assert not target.exists()
    with pytest.raises(ZeroDivisionError), cache.new_folder(target) as draft:
        (draft / "new").touch()
        raise ZeroDivisionError
    assert [path.name for path in target.iterdir()] == ["old"]
    with cache.new_folder(target) as draft:
        (draft / "new").touch()
    assert [path.name for path in target.iterdir()] == ["new"]
    assert [path.name for path in tmp_path.iterdir()] == ["target"]


def test_no_network_and_no_cache(softroce: Softroce, tmp_path: Path) -> None:
    nowhere = "http://127.0.0.1:9"
    done = softroce("run", "--qemu", "--", "true", XDG_CACHE_HOME=str(tmp_path), http_proxy=nowhere)
    assert done.returncode == 125
    assert "needs the network, once" in done.stderr
    assert "Traceback" not in done.stderr
    left = {path.name for path in (tmp_path / "rdmatensor/softroce").iterdir()}
    assert left <= {"apt", "lock"}


def test_a_cache_that_cannot_be_made(softroce: Softroce, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = softroce("run", "--qemu", "--", "true", XDG_CACHE_HOME=str(tmp_path / "file"))
    assert done.returncode == 125
    assert "XDG_CACHE_HOME" in done.stderr


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"hosts": 0}, "1 to 16"),
        ({"hosts": 17}, "1 to 16"),
        ({"mtu": 100}, "576 to 65535"),
        ({"memory": 10}, "at least 256"),
        ({"shared": "/no/such/folder"}, "does not exist"),
    ],
)
def test_wrong_values_are_refused(options: dict[str, int], words: str) -> None:
    with pytest.raises(LabError, match=words):
        Lab(**options)  # type: ignore[arg-type]


def test_a_variable_that_is_not_set(softroce: Softroce) -> None:
    done = softroce("run", "--env", "NOT_SET_ANYWHERE", "--", "true")
    assert done.returncode == 125
    assert "NOT_SET_ANYWHERE" in done.stderr


def test_the_lab_needs_no_compiled_module() -> None:
    script = "import sys, rdmatensor.softroce; print('rdmatensor._ffi' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "False\n"

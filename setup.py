# SPDX-License-Identifier: Apache-2.0
"""Builds rdmatensor: CMake makes the C libraries, cffi the Python module that binds them.

Metadata is in pyproject.toml. This file has what setuptools cannot express there: the version (from
CMakeLists.txt), the URLs, the CMake step and the tag of the wheel.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from importlib.util import find_spec
from pathlib import Path

from setuptools import setup
from setuptools.command.build import build
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent


def version() -> str:
    text = (ROOT / "CMakeLists.txt").read_text()
    match = re.search(r"project\(rdmatensor VERSION ([0-9.]+)", text)
    if match is None:
        raise SystemExit("CMakeLists.txt: no line 'project(rdmatensor VERSION x.y.z'")
    return match.group(1)


# Where the sources are published, "https://github.com/OWNER/NAME"; releases are its tags v0.1.0, v0.2.0, ...
REPOSITORY = os.environ.get("RDMATENSOR_REPOSITORY", "").rstrip("/")


def urls() -> dict[str, str]:
    """The links for package indexes. Empty unless REPOSITORY is set."""
    if not REPOSITORY:
        return {}
    tag = f"{REPOSITORY}/blob/v{version()}"
    return {
        "Homepage": REPOSITORY,
        "Documentation": f"{tag}/README.md#documentation",
        "Changelog": f"{tag}/CHANGELOG.md",
        "Issues": f"{REPOSITORY}/issues",
        "Source": REPOSITORY,
    }


def readme() -> str:
    """README.md for package indexes: its relative links lead to the repository."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    if not REPOSITORY:
        return text

    def lead(match: re.Match[str]) -> str:
        kind = "raw" if match[1] else "blob"
        return f"{match[1]}[{match[2]}]({REPOSITORY}/{kind}/v{version()}/{match[3]})"

    return re.sub(r"(!?)\[([^]]*)\]\((?!\w+:|#)([^)\s]+)\)", lead, text)


def hidden_tensorflow() -> str:
    """The folder of the user's TensorFlow, if an isolated build hides it.

    "" if TensorFlow can be imported, or RDMATENSOR_TENSORFLOW names it. pip hides packages but keeps the
    paths of their environment. uv and `python -m build` put an environment of their own first in PATH; uv
    also installs into ".venv" beside the sources, which need not be in PATH.
    """
    own = Path(sysconfig.get_path("purelib"))
    if (
        os.environ.get("RDMATENSOR_TENSORFLOW")
        or find_spec("tensorflow")
        or (own / "tensorflow").is_dir()
    ):
        return ""
    folders = [Path(name) for name in os.environ.get("PATH", "").split(os.pathsep) if name]
    for prefix in [*(folder.parent for folder in folders), ROOT / ".venv"]:
        if (prefix / "pyvenv.cfg").is_file() or (prefix / "conda-meta").is_dir():
            site = f"lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"
            if (prefix / site / "tensorflow" / "include").is_dir():
                return str(prefix / site / "tensorflow")
    return ""


def tool(name: str) -> str | None:
    """A program of this interpreter's environment, where pip installs cmake and ninja, or of PATH."""
    beside = str(Path(sys.executable).parent)
    return shutil.which(name, path=beside) or shutil.which(name)


class BuildAfresh(build):
    """Starts with an empty folder, because everything in it goes into the wheel.

    An earlier build may have left a plugin for a TensorFlow that is no longer installed. CMake keeps its
    objects in another folder.
    """

    def run(self) -> None:
        shutil.rmtree(self.build_lib, ignore_errors=True)
        super().run()


class BuildWithCMake(build_ext):
    """Runs CMake, installs its products into the build folder, then builds the cffi module.

    CMake's install tree is the wheel's tree: rdmatensor/*.so, and tensorflow-plugins/*.so at the
    top, because that is where TensorFlow looks for plugins inside site-packages. For an editable
    install the products go beside the sources, and only the shim goes into site-packages.
    """

    def run(self) -> None:
        cmake, ninja = tool("cmake"), tool("ninja")
        if cmake is None:
            raise SystemExit("rdmatensor: CMake 3.20 or newer is needed: pip install cmake")
        generator = "Ninja" if ninja else "Unix Makefiles"
        tensorflow = os.environ.get("RDMATENSOR_BUILD_TENSORFLOW", "AUTO")
        kind = ("ninja" if ninja else "make") + ("-core" if tensorflow == "OFF" else "")
        if toolchain := os.environ.get("CMAKE_TOOLCHAIN_FILE"):  # CMake takes it from there
            kind += f"-{Path(toolchain).stem}"
        folder = ROOT / "build" / f"cmake-{kind}"
        settings = {
            "CMAKE_BUILD_TYPE": "Release",
            "Python3_EXECUTABLE": sys.executable,
            "RDT_BUILD_TENSORFLOW": tensorflow,
            "RDT_PLUGIN_FOLDER": str(ROOT / "rdmatensor") if self.editable_mode else "",
        }
        if ninja:
            # An isolated build's ninja is gone when the next build reads CMake's cache, so always give it.
            settings["CMAKE_MAKE_PROGRAM"] = ninja
        defines = [f"-D{name}={value}" for name, value in settings.items()]
        prefix = Path(self.build_lib).resolve()
        environment = dict(os.environ)
        if hidden := hidden_tensorflow():
            print(f"rdmatensor: this isolated build takes {hidden}")
            environment["RDMATENSOR_TENSORFLOW"] = hidden
        for command in (
            [cmake, "-S", str(ROOT), "-B", str(folder), "-G", generator, *defines],
            [cmake, "--build", str(folder), "--parallel", str(min(2, os.cpu_count() or 1))],
            [cmake, "--install", str(folder), "--prefix", str(prefix)],
        ):
            subprocess.run(command, env=environment, check=True)
        if self.editable_mode:
            self.put_beside_sources(prefix)
        for extension in self.extensions:
            extension.library_dirs.append(str(prefix / "rdmatensor"))
        super().run()

    def put_beside_sources(self, tree: Path) -> None:
        package = ROOT / "rdmatensor"
        # Remove the files instead of overwriting them, because a process may have loaded them.
        for pattern in ("*.so", "*.so.*", "*.layout", "_build_info.json"):
            for old in package.glob(pattern):
                old.unlink()
        for product in (tree / "rdmatensor").iterdir():
            shutil.copy2(product, package)
        plugins = tree / "tensorflow-plugins"
        site = Path(sysconfig.get_path("platlib")).relative_to(sys.prefix)
        self.distribution.data_files = [
            (str(site / plugins.name), list(map(str, plugins.glob("*"))))
        ]
        # setuptools runs this itself for headers and scripts only.
        self.run_command("install_data")


setup(
    version=version(),
    long_description=readme(),
    long_description_content_type="text/markdown",
    project_urls=urls(),
    cmdclass={"build": BuildAfresh, "build_ext": BuildWithCMake},
    cffi_modules=["rdmatensor/_build_ffi.py:ffibuilder"],
    # Only the cffi module touches Python, through its stable ABI: one wheel serves all versions.
    options={"bdist_wheel": {"py_limited_api": "cp310"}},
)

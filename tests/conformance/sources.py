# SPDX-License-Identifier: Apache-2.0
"""The test files to run: where their sources are, and how each becomes a program.

TensorFlow's tests start themselves again for their worker processes, so a test file has to be an executable
whose name does not end in .py. Its text is not edited, but for the first line, a comment, which becomes the
interpreter's line. Tests of TF-Keras also get the package name under which its wheel has its modules, as its
own releases do.
"""

from __future__ import annotations

import ast
import importlib.util
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

KERAS = "tf_keras/"
# Parts of the wheel that keep their place beside tf_keras/src.
KERAS_IMPORT = re.compile(
    r"^(\s*(?:from|import)) tf_keras\b(?!\.(?:api|protobuf|src)\b)", re.MULTILINE
)
OPTION = re.compile(r"shards=([1-9]\d*)|v1|tensors")


class Unusable(Exception):
    """What was asked for cannot be run; the text names the cause and the remedy."""


@dataclass(frozen=True)
class SuiteFile:
    """One test file and how to run it. `path` is relative to the folder with tensorflow/ or tf_keras/."""

    path: str
    shards: int = 1
    v1: bool = False
    tensors: bool = False

    @property
    def name(self) -> str:
        """A short name that is unique and can be a file's."""
        stem = self.path.removeprefix("tensorflow/python/").removesuffix(".py")
        return stem.replace("/", ".")


def parse(text: str) -> list[SuiteFile]:
    """The files that `text` names: each path is followed by its options. Raises Unusable."""
    files: list[SuiteFile] = []
    for word in re.sub(r"#.*", "", text).replace(",", " ").split():
        if word.endswith(".py"):
            files.append(SuiteFile(word))
            continue
        match = OPTION.fullmatch(word)
        if match is None or not files:
            raise Unusable(f"{word!r}: not a path that ends in .py, shards=N, v1 or tensors")
        last = files.pop()
        files.append(
            SuiteFile(
                last.path,
                int(match[1]) if match[1] else last.shards,
                last.v1 or word == "v1",
                last.tensors or word == "tensors",
            )
        )
    names = [file.name for file in files]
    if twice := {name for name in names if names.count(name) > 1}:
        raise Unusable(f"named twice: {', '.join(sorted(twice))}")
    return files


@dataclass(frozen=True)
class Sources:
    """A folder, or what the newest commit of a git directory has."""

    folder: Path

    def read(self, path: str) -> str | None:
        """The text of a file, None if there is none. Raises Unusable if git fails."""
        if (plain := self.folder / path).is_file():
            return plain.read_text()
        if path not in self._committed:
            return None
        return self._git("show", f"HEAD:{path}")

    @cached_property
    def _committed(self) -> frozenset[str]:
        if not (self.folder / ".git").exists() and not (self.folder / "objects").is_dir():
            return frozenset()
        return frozenset(self._git("ls-tree", "-r", "--name-only", "HEAD").splitlines())

    def _git(self, *words: str) -> str:
        done = subprocess.run(
            ["git", "-C", self.folder, *words], capture_output=True, text=True, timeout=600
        )
        if done.returncode:
            raise Unusable(f"git {words[0]} in {self.folder}: {done.stderr.strip()}")
        return done.stdout


class Preparation:
    """Makes programs below `out`/bin, and copies helpers that the wheels lack to `out`/overlay."""

    def __init__(self, tensorflow: Sources, keras: Sources | None, out: Path) -> None:
        self.tensorflow = tensorflow
        self.keras = keras  # the folder that has tf_keras/
        self.programs = out / "bin"
        self.overlay = out / "overlay"

    def prepare(self, file: SuiteFile) -> Path:
        """Gives the program that runs the tests of `file`. Raises Unusable."""
        text = self._read(file.path)
        if text is None:
            where = self.keras if file.path.startswith(KERAS) else self.tensorflow
            if where is None:
                raise Unusable(f"{file.path}: name TF-Keras' sources, too: KERAS=/path/to/tf_keras")
            raise Unusable(f"{where.folder} has no {file.path}")
        self._copy_helpers(file.path, text)
        program = self.programs / file.name
        program.parent.mkdir(parents=True, exist_ok=True)
        program.write_text(f"#!{sys.executable}\n" + text.partition("\n")[2])
        program.chmod(0o755)
        return program

    def _read(self, path: str) -> str | None:
        if not path.startswith(KERAS):
            return self.tensorflow.read(path)
        text = self.keras.read(path) if self.keras else None
        return text and KERAS_IMPORT.sub(r"\1 tf_keras.src", text)

    def _copy_helpers(self, path: str, text: str) -> None:
        """Copies the modules that `text` imports, directly or not, and that no wheel has."""
        for module in imported(path, text):
            installed = module.replace(".", "/") + ".py"
            source = installed.replace("tf_keras/src/", KERAS)
            copy = self.overlay / installed
            if copy.exists() or is_installed(module):
                continue
            helper = self._read(source)
            if helper is not None:
                copy.parent.mkdir(parents=True, exist_ok=True)
                copy.write_text(helper)
                self._copy_helpers(source, helper)


def imported(path: str, text: str) -> Iterator[str]:
    """What may be modules of TensorFlow or TF-Keras among the names that `text` imports. Raises Unusable."""
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        raise Unusable(f"{path}: {error}") from error
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        yield from (name for name in names if name.startswith(("tensorflow.", "tf_keras.src.")))


def is_installed(module: str) -> bool:
    """True if a wheel has it. Imports nothing."""
    top, _, rest = module.partition(".")
    spec = importlib.util.find_spec(top)
    if spec is None or spec.origin is None:
        return False
    place = Path(spec.origin).parent / rest.replace(".", "/")
    return place.is_dir() or any(place.parent.glob(f"{place.name}.*"))

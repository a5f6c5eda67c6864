# SPDX-License-Identifier: Apache-2.0
"""Where test files and their helpers come from."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from conformance.shards import Limits, Side, Work, run
from conformance.sources import Preparation, Sources, SuiteFile, Unusable, parse

MAIN = '\nif __name__ == "__main__":\n    unittest.main()\n'
USES_HELPER = f"""
import unittest

from tensorflow.python.made_up import helper
from tensorflow.python.made_up.deep.deeper import answer

class Helped(unittest.TestCase):
    def test_helper(self):
        self.assertEqual((helper.answer(), answer()), (42, 42))
{MAIN}"""


def passes(program: Path, out: Path) -> bool:
    results, _ = run(Work(program, out), Side("grpc", "grpc"), Limits(test=60, shard=100))
    return bool(results) and all(result["status"] == "pass" for result in results.values())


def test_lines_name_files_and_their_options() -> None:
    text = "# comment\na/b_test.py shards=4 tensors  # why\nc_test.py v1, d_test.py\n"
    assert parse(text) == [
        SuiteFile("a/b_test.py", 4, tensors=True),
        SuiteFile("c_test.py", v1=True),
        SuiteFile("d_test.py"),
    ]


@pytest.mark.parametrize(
    "text", ["shards=2", "a.py shard=2", "a.py shards=0", "a.py b", "a.py a.py"]
)
def test_other_lines_are_refused(text: str) -> None:
    with pytest.raises(Unusable):
        parse(text)


def test_the_list_of_files_can_be_read(root: Path) -> None:
    files = parse((root / "tests" / "conformance" / "files.txt").read_text())
    assert len(files) >= 7 and all(file.tensors for file in files)


@pytest.mark.long
def test_helpers_that_the_wheel_lacks_come_from_the_sources(
    tmp_path: Path, sources: Callable[..., str]
) -> None:
    pytest.importorskip("tensorflow", exc_type=ImportError)
    path = sources("helped_test", USES_HELPER)
    sources("helper", "from tensorflow.python.made_up.deep import deeper\nanswer = deeper.answer\n")
    sources("deep/deeper", "def answer():\n    return 42\n")
    out = tmp_path / "out"
    assert passes(
        Preparation(Sources(tmp_path / "source"), None, out).prepare(SuiteFile(path)), out
    )
    copied = sorted(file.name for file in (out / "overlay").rglob("*.py"))
    assert copied == ["deeper.py", "helper.py"], "not what the wheel has"


@pytest.mark.parametrize("bare", [False, True])
def test_git_directories_are_sources(
    tmp_path: Path, sources: Callable[..., str], bare: bool
) -> None:
    path = sources("some_test", "text\n")
    folder = tmp_path / "source"
    commit(folder)
    (folder / path).unlink()
    found = Sources(folder / ".git" if bare else folder)
    assert found.read(path) == "# Copyright\ntext\n"
    assert found.read("tensorflow/no_such_test.py") is None


def commit(folder: Path) -> None:
    environment = dict(os.environ) | {
        f"GIT_{who}_{what}": "nobody@example.org"
        for who in ("AUTHOR", "COMMITTER")
        for what in ("NAME", "EMAIL")
    }
    for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "all"]):
        subprocess.run(["git", "-C", folder, *command], check=True, env=environment, timeout=60)


@pytest.mark.long
def test_tests_of_keras_find_the_modules_of_its_wheel(tmp_path: Path) -> None:
    file = tmp_path / "tf_keras/distribute/made_up_test.py"
    file.parent.mkdir(parents=True)
    file.write_text(
        f"""# Copyright
import unittest

import tf_keras as keras
from tf_keras.distribute import made_up_base
from tf_keras.utils import np_utils
from tf_keras.src import losses

class Keras(unittest.TestCase):
    def test_modules(self):
        self.assertIn("src", np_utils.__name__)
        self.assertIs(keras.losses, losses)
        self.assertIs(made_up_base.keras, keras)
{MAIN}"""
    )
    (file.parent / "made_up_base.py").write_text("import tf_keras as keras\n")
    pytest.importorskip("tf_keras", exc_type=ImportError)
    out = tmp_path / "out"
    preparation = Preparation(Sources(tmp_path / "none"), Sources(tmp_path), out)
    assert passes(preparation.prepare(SuiteFile("tf_keras/distribute/made_up_test.py")), out)


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    preparation = Preparation(Sources(tmp_path), None, tmp_path / "out")
    with pytest.raises(Unusable, match=r"has no tensorflow/x_test\.py"):
        preparation.prepare(SuiteFile("tensorflow/x_test.py"))
    with pytest.raises(Unusable, match="KERAS="):
        preparation.prepare(SuiteFile("tf_keras/x_test.py"))

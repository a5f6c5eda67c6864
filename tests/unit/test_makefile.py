# SPDX-License-Identifier: Apache-2.0
"""What each target of the Makefile installs before it begins, in an environment where nothing is yet."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

TOOLS, PACKAGES, PROGRAMS = "prepare build", "--group bench --group test", "prepare tests"
SITE = "--group docs"

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="no make")


def make(root: Path, *words: str) -> str:
    done = subprocess.run(
        ["make", "-C", str(root), "--no-print-directory", *words],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def installed(root: Path, target: str) -> list[str]:
    """In the order in which it would be."""
    said = make(root, "--dry-run", "VENV=build/no-such-environment", *target.split())
    # Lint calls make once more, in which nothing has been installed either.
    return list(dict.fromkeys(re.findall("|".join((TOOLS, PACKAGES, PROGRAMS, SITE)), said)))


@pytest.mark.parametrize("target", ["build", "demo", "wheel", "dist", "test SUITE=aarch64"])
def test_building_and_trying_installs_nothing_of_the_tests(root: Path, target: str) -> None:
    assert installed(root, target) == [TOOLS]


@pytest.mark.parametrize("target", ["format", "bench-quick", "test SUITE=chaos"])
def test_what_runs_no_tests_installs_no_programs(root: Path, target: str) -> None:
    assert installed(root, target) == [TOOLS, PACKAGES]


def test_the_site_needs_no_tensorflow(root: Path) -> None:
    said = make(root, "--dry-run", "VENV=build/no-such-environment", "site")
    assert "--group docs" in said and "tensorflow" not in said.lower()
    assert installed(root, "docs") == [TOOLS, SITE]
    assert installed(root, "lint") == [TOOLS, PACKAGES, SITE]


@pytest.mark.parametrize(
    "target",
    ["test", "sanitize", "test SUITE=soak", "test SUITE=failures", "test SUITE=verbs", "bench"],
)
def test_tests_install_all_they_need(root: Path, target: str) -> None:
    assert installed(root, target) == [TOOLS, PACKAGES, PROGRAMS]


def test_fuzzing_needs_no_packages(root: Path) -> None:
    assert installed(root, "fuzz") == [TOOLS, PROGRAMS]


def test_conformance_installs_what_tensorflows_tests_import(root: Path) -> None:
    words = ("test", "SUITE=conformance", "SOURCE=x")
    said = make(root, "--dry-run", "VENV=build/no-such-environment", *words)
    assert "--group conformance" in said and "tf_keras" in said
    assert f"--source '{root / 'x'}'" in said


def test_conformance_asks_for_sources_before_it_builds(root: Path) -> None:
    done = subprocess.run(
        ["make", "-C", str(root), "--dry-run", "test", "SUITE=conformance"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode != 0 and "SOURCE=" in done.stderr and "pip" not in done.stdout


def test_an_unknown_suite_is_refused_with_those_there_are(root: Path) -> None:
    done = subprocess.run(
        ["make", "-C", str(root), "test", "SUITE=kaos"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode != 0 and "kaos is no suite" in done.stderr and "chaos" in done.stderr


def test_core_needs_no_tensorflow(root: Path) -> None:
    said = make(root, "--dry-run", "core")
    assert "--group core" in said and "tensorflow" not in said.lower()


def test_help_names_every_target(root: Path) -> None:
    text = (root / "Makefile").read_text()
    targets = re.findall(r"^\.PHONY: ((?:.*\\\n)*.*)$", text, re.MULTILINE)[0]
    named = set(re.findall(r"^make ([a-z-]+) ", make(root, "help"), re.MULTILINE))
    assert set(targets.replace("\\", "").split()) - {"help"} == named

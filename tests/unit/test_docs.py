# SPDX-License-Identifier: Apache-2.0
"""The pages hold together: what they name exists."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

from rdmatensor import config
from rdmatensor.cli import COMMANDS

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
FENCE = re.compile(r"^( *)```.*?^\1```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")

each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


def prose(page: Path) -> str:
    return FENCE.sub("", page.read_text())


def code(page: Path) -> list[str]:
    """Lines of blocks, and what stands between backticks."""
    blocks = [match[0] for match in FENCE.finditer(page.read_text())]
    spans = re.findall(r"`([^`\n]+)`", prose(page))
    return [
        line.strip().removeprefix("$ ") for block in blocks for line in block.split("\n")
    ] + spans


def anchors(page: Path) -> set[str]:
    """As repositories make them of headings."""
    titles = re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE)
    plain = [re.sub(r"[^\w\- ]", "", title.lower()) for title in titles]
    return {title.replace(" ", "-") for title in plain}


@each_page
def test_links_and_anchors_resolve(page: Path) -> None:
    broken = []
    for link in LINK.findall(prose(page)):
        if re.match(r"https?://", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path) if path else page
        if not target.is_file() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert not broken


@each_page
def test_settings_exist(page: Path) -> None:
    pattern = r"\bRDMATENSOR_([A-Z][A-Z_]*[A-Z])\b"
    known = {setting.name for setting in config.table()}
    # The build, the lab and the tests have variables of their own; one is misspelt on purpose.
    build = [ROOT / "setup.py", *ROOT.glob("csrc/cmake/*")]
    known |= {*re.findall(pattern, "".join(file.read_text() for file in build)), "SPINUS"}
    named = set(re.findall(pattern, page.read_text()))
    named = {name for name in named if not name.startswith(("LAB_", "TEST_"))}
    assert named <= known, named - known


@each_page
def test_make_targets_exist(page: Path) -> None:
    targets = set(
        re.findall(r"^([a-z0-9-]+(?: [a-z0-9-]+)*):", (ROOT / "Makefile").read_text(), re.M)
    )
    known = {name for names in targets for name in names.split()}
    named = {match[1] for text in code(page) if (match := re.match(r"make ([a-z-]+)\b", text))}
    assert named <= known, named - known
    suites = {match[1] for text in code(page) if (match := re.search(r"SUITE=([a-z0-9]+)", text))}
    assert {f"suite-{suite}" for suite in suites} <= known


@each_page
def test_commands_exist(page: Path) -> None:
    commands = [match for text in code(page) if (match := re.match(r"rdmatensor ([a-z]+)\b", text))]
    named = {match[1] for match in commands}
    assert named <= {*COMMANDS}, named - {*COMMANDS}


@each_page
def test_python_names_exist(page: Path) -> None:
    """Those of modules that users import: `rdmatensor.tensorflow.stats()`."""
    missing = []
    for text in code(page):
        for name, attribute in re.findall(
            r"\brdmatensor\.(config|errors|faults|plan|tensorflow)\.(\w+)", text
        ):
            if not hasattr(importlib.import_module(f"rdmatensor.{name}"), attribute):
                missing.append(f"rdmatensor.{name}.{attribute}")
    assert not missing


def sources() -> str:
    """All texts of the program, with literals that follow each other joined, and no prefix of settings."""
    kinds = ("*.c", "*.h", "*.cc", "*.py")
    folders = [ROOT / name for name in ("csrc", "rdmatensor", "graph_analyzer")]
    files = [file for folder in folders for kind in kinds for file in folder.rglob(kind)]
    text = "\n".join(file.read_text() for file in files)
    for joined in ('" RDT_ENV_PREFIX "', "%s", "RDMATENSOR_"):
        text = text.replace(joined, "")
    return re.sub(r'"\s*f?"', "", text).replace('\\"', '"')


# What TensorFlow, gRPC, libibverbs and the system say.
OTHERS = (
    "No server factory registered for",
    'protocol: "grpc+rdma"',
    "Address already in use",
    "Cannot assign requested address",
    "Connection refused",
    "DataLossError",
    "exception not rethrown",
    "libibverbs.so.1",
    "Network is unreachable",
    "No route to host",
    "QueueBase::Cancel",
    "Too many open files",
    "Work Request Flushed Error (5)",
    "remote access error (10)",
    "transport retry counter exceeded (12)",
    "undefined symbol",
)


def test_error_texts_are_those_of_the_program() -> None:
    """Of the first column of docs/troubleshooting.md; "..." stands for what differs."""
    said = sources()
    page = (ROOT / "docs/troubleshooting.md").read_text()
    rows = re.findall(r"^\| (.*?) \| ", page, re.MULTILINE)
    quoted = [text for row in rows for text in re.findall(r"`([^`]+)`", row) if "(" not in text[:8]]
    assert len(quoted) > 80
    missing = []
    for text in quoted:
        for others in OTHERS:
            text = text.replace(others, "...")
        # What stands behind a colon is often another function's.
        parts = [part.strip() for part in re.split(r"\.\.\.|: ", text.replace("RDMATENSOR_", ""))]
        missing += [part for part in parts if part not in said]
    assert not missing

# SPDX-License-Identifier: Apache-2.0
"""Checks that the arrows between rooms hold: `.ci/rooms.py [--write] [FOLDER]`, part of `make lint`.

docs/rooms.toml is the table. Every #include and import of the sources is read, and each one that the table
does not allow is named with its line. So is each circle of files, each file without a room, and each file
that does not say first what it does. --write renews the rooms in docs/architecture.md.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import networkx

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

TABLE = "docs/rooms.toml"
PAGE = "docs/architecture.md"
BEGIN, END = "<!-- rooms: made by .ci/rooms.py --write -->\n", "<!-- end of rooms -->"
SUFFIXES = (".c", ".cc", ".h", ".py")
INCLUDE = re.compile(r'\s*#\s*include\s+"([^"]+)"')


@dataclass(frozen=True)
class Arrow:
    """One #include or import. `only_types`: a type checker reads it, and Python never does."""

    source: str
    line: int
    target: str
    only_types: bool = False


class Table:
    """The rooms: their folders or files, and which rooms each may use."""

    def __init__(self, text: str) -> None:
        table = tomllib.loads(text)
        self.ignored: list[str] = table["ignored"]
        self.circles: list[set[str]] = [set(each["files"]) for each in table.get("circle", [])]
        self.rooms: dict[str, list[str]] = {}
        self.arrows = networkx.DiGraph()
        self.does: dict[str, str] = {}
        for name, room in table["rooms"].items():
            self.rooms[name] = room["files"]
            self.does[name] = room["does"]
            self.arrows.add_node(name)
        for name, room in table["rooms"].items():
            for used in room["uses"]:
                if used not in self.rooms:
                    raise ValueError(f"{TABLE}: {name} uses {used}, which is no room")
                self.arrows.add_edge(name, used)
        if not networkx.is_directed_acyclic_graph(self.arrows):
            raise ValueError(f"{TABLE}: a circle: {networkx.find_cycle(self.arrows)}")

    def room(self, file: str) -> str | None:
        """The room whose folder or file is the longest that fits; None if there is none."""
        fits = [
            (len(place), name)
            for name, places in self.rooms.items()
            for place in places
            if file.startswith(place + "/") or file in (place, place.removesuffix(".py"))
        ]
        return max(fits)[1] if fits else None

    def allows(self, room: str, used: str) -> bool:
        """A room may use itself, the rooms in its list, and what those may use."""
        return bool(networkx.has_path(self.arrows, room, used))

    def page(self, text: str) -> str:
        """Returns docs/architecture.md with the rooms as they are."""
        head, begin, rest = text.partition(BEGIN)
        _, end, tail = rest.partition(END)
        if not end:
            raise ValueError(f"{PAGE}: {BEGIN.strip()} ... {END} are missing")
        lines = ["| room | what it does | files | may use |", "|---|---|---|---|"]
        for name, places in self.rooms.items():
            files = ", ".join(f"`{place}`" for place in places)
            uses = ", ".join(self.arrows.successors(name))
            lines.append(f"| {name} | {self.does[name]} | {files} | {uses} |")
        return "\n".join([head + begin.rstrip(), *lines, end + tail])


def includes(root: Path, file: str) -> Iterator[Arrow]:
    """The #includes of our own files, found in the folders that the compiler is given."""
    plugin = file.startswith("csrc/tensorflow/")
    folders = [
        "csrc/include",
        "csrc/tensorflow" if plugin else "csrc",
        str(PurePosixPath(file).parent),
        ".",
    ]
    for number, line in enumerate((root / file).read_text().splitlines(), 1):
        if match := INCLUDE.match(line):
            for folder in folders:
                if (root / folder / match[1]).is_file():
                    yield Arrow(file, number, str(PurePosixPath(folder, match[1])))
                    break


def imports(root: Path, file: str) -> Iterator[Arrow]:
    """The imports of our own modules, at the top and inside functions."""
    path = PurePosixPath(file)
    tree = ast.parse((root / file).read_text())
    types = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            base = "/".join(path.parts[: len(path.parts) - node.level]) if node.level else ""
            module = "/".join(filter(None, [base, (node.module or "").replace(".", "/")]))
            names = [f"{module}/{name.name}" for name in node.names]
        elif isinstance(node, ast.Import):
            names = [name.name.replace(".", "/") for name in node.names]
        else:
            continue
        for name in names:
            # A module, or something of the module that it lies in.
            for target in (f"{name}.py", f"{name}/__init__.py", f"{PurePosixPath(name).parent}.py",
                           f"{PurePosixPath(name).parent}/__init__.py"):  # fmt: skip
                if (root / target).is_file():
                    yield Arrow(file, node.lineno, target, id(node) in types)
                    break


def unit(file: str) -> str:
    """A header and its source count as one file."""
    return re.sub(r"\.(h|c|cc)$", "", file)


def sources(root: Path, table: Table) -> list[str]:
    files = [
        str(path.relative_to(root))
        for folder in ("csrc", "rdmatensor", "graph_analyzer")
        for path in sorted((root / folder).rglob("*"))
        if path.suffix in SUFFIXES
    ]
    return [file for file in files if not any(map(PurePosixPath(file).match, table.ignored))]


def says_what_it_does(text: str, suffix: str) -> bool:
    """Tells whether a file opens with a docstring, or with a comment of more than its license."""
    if suffix == ".py":
        return bool(ast.get_docstring(ast.parse(text)))
    opening = re.match(r"(?:\s*(?:/\*|\*|//).*\n)*", text)
    return bool(opening and re.search(r"\n[ */]*\n[ */]*\w", opening[0]))


def check(root: Path, table: Table) -> list[str]:
    """What is wrong, a line each."""
    files = sources(root, table)
    arrows = [
        arrow
        for file in files
        for arrow in (imports if file.endswith(".py") else includes)(root, file)
    ]
    wrong = [
        f"{file}: no room of {TABLE} has this file" for file in files if table.room(file) is None
    ]
    spoken = {unit(file) for file in files
              if says_what_it_does((root / file).read_text(), PurePosixPath(file).suffix)}  # fmt: skip
    wrong += [
        f"{name}: its first sentence should say what the file does"
        for name in dict.fromkeys(map(unit, files))
        if name not in spoken
    ]
    graph = networkx.DiGraph()
    for arrow in arrows:
        room, used = table.room(arrow.source), table.room(arrow.target)
        if room and used and not table.allows(room, used):
            wrong.append(f"{arrow.source}:{arrow.line}: {room} may not use {used} ({arrow.target})")
        if not arrow.only_types and unit(arrow.source) != unit(arrow.target):
            graph.add_edge(unit(arrow.source), unit(arrow.target))
    for circle in networkx.strongly_connected_components(graph):
        if len(circle) > 1 and circle not in table.circles:
            steps = networkx.find_cycle(graph.subgraph(circle))
            path = " -> ".join(source for source, _ in steps)
            wrong.append(f"a circle of {len(circle)} files: {path} -> {steps[0][0]}")
    return wrong


def main(write: bool, folder: str = ".") -> int:
    root = Path(folder)
    table = Table((root / TABLE).read_text())
    wrong = check(root, table)
    page = root / PAGE
    wanted = table.page(page.read_text())
    if write:
        page.write_text(wanted)
    elif page.read_text() != wanted:
        wrong.append(f"{PAGE} is outdated: run .ci/rooms.py --write")
    print("\n".join(wrong), end="\n" if wrong else "")
    return bool(wrong)


if __name__ == "__main__":
    words = sys.argv[1:]
    sys.exit(main("--write" in words, *(word for word in words if word != "--write")))

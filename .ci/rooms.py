# SPDX-License-Identifier: Apache-2.0
"""Checks that the arrows between rooms hold: `.ci/rooms.py [--write] [FOLDER]`, part of `make lint`.

docs/rooms.toml is the table. Every #include and import of the sources is read, and each one that the table
does not allow is named with its line. So is each circle of files, and each file without a room.
The file map of docs/architecture.md is made from each file's first sentence, and docs/img/rooms.mmd from the
table; --write renews both.
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
DIAGRAM = "docs/img/rooms"
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
        for name, room in table["rooms"].items():
            self.rooms[name] = room["files"]
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

    def diagram(self) -> str:
        """The rooms and their arrows as Mermaid draws them."""
        lines = ["flowchart BT"]
        for name, places in self.rooms.items():
            lines.append(f'  {_key(name)}["{name}<br>{"<br>".join(places)}"]')
        lines += [f"  {_key(room)} --> {_key(used)}" for room, used in self.arrows.edges]
        return "\n".join(lines) + "\n"


def _key(name: str) -> str:
    return re.sub(r"\W", "", name) + "_"


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


def first_sentence(text: str, suffix: str) -> str:
    """The first sentence of a file's docstring, or of its opening comment; "" if there is none."""
    if suffix == ".py":
        said = ast.get_docstring(ast.parse(text)) or ""
    else:
        lines = []
        for line in text.splitlines():
            bare = line.strip()
            if not bare.startswith(("/*", "*", "//")):
                break
            lines.append(bare.strip("/* "))
        said = "\n".join(lines).partition("\n\n")[2]
    paragraph = " ".join(said.partition("\n\n")[0].split())
    match = re.match(r"(.+?[.:;])(\s|$)", paragraph)
    return (match[1] if match else paragraph).rstrip(".:;")


def sentences(root: Path, table: Table) -> dict[str, str]:
    """What each file says first, by its path without suffix. A header speaks for its source."""
    said: dict[str, str] = {}
    for file in sources(root, table):
        sentence = first_sentence((root / file).read_text(), PurePosixPath(file).suffix)
        name = unit(file).removesuffix(".py")
        if sentence and (file.endswith(".h") or not said.get(name)):
            said[name] = sentence
        said.setdefault(name, "")
    return said


def file_map(root: Path, table: Table) -> str:
    """All files by room, each with its first sentence."""
    said = sentences(root, table)
    lines = []
    for name in table.rooms:
        lines += [f"### {name}", "", "| file | what it does |", "|---|---|"]
        files = [file for file in said if table.room(file) == name]
        lines += [f"| `{file}` | {said[file]} |" for file in files if not file.endswith("__init__")]
        lines.append("")
    return "\n".join(lines)


def page(text: str, root: Path, table: Table) -> str:
    """docs/architecture.md with the map as it should be."""
    begin, end = "<!-- map: made by .ci/rooms.py --write -->\n", "<!-- end of map -->"
    head, _, rest = text.partition(begin)
    _, found, tail = rest.partition(end)
    if not found:
        raise ValueError(f"{PAGE}: {begin.strip()} ... {end} are missing")
    return f"{head}{begin}{file_map(root, table).rstrip()}\n{end}{tail}"


def old(root: Path, table: Table, write: bool) -> list[str]:
    """The page and the diagram if they are older than the sources and the table. `write` renews them."""
    text = (root / PAGE).read_text()
    wanted = {PAGE: page(text, root, table), f"{DIAGRAM}.mmd": table.diagram()}
    outdated = []
    for name, content in wanted.items():
        file = root / name
        if write:
            file.write_text(content)
        elif not file.is_file() or file.read_text() != content:
            outdated.append(f"{name} is outdated: run .ci/rooms.py --write")
    picture = root / f"{DIAGRAM}.svg"
    drawn = set(re.findall(r'"L_(\w+_)_0"', picture.read_text() if picture.is_file() else ""))
    if drawn != {f"{_key(room)}_{_key(used)}" for room, used in table.arrows.edges}:
        outdated.append(f"{DIAGRAM}.svg is outdated: draw it from {DIAGRAM}.mmd (CONTRIBUTING.md)")
    return outdated


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
    for name, sentence in sentences(root, table).items():
        if not sentence:
            wrong.append(f"{name}: its first sentence should say what the file does")
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
    wrong = check(root, table) + old(root, table, write)
    print("\n".join(wrong), end="\n" if wrong else "")
    return bool(wrong)


if __name__ == "__main__":
    words = sys.argv[1:]
    sys.exit(main("--write" in words, *(word for word in words if word != "--write")))

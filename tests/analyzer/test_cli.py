# SPDX-License-Identifier: Apache-2.0
"""`rdmatensor plan`."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import tensorflow as tf
from click.testing import CliRunner

from graph_analyzer import TransferPlan, analyze
from graph_analyzer.cli import plan as plan_command
from support import placed_graphs as graphs
from support import warm

MODULE = """
import keras
def model():
    return keras.Sequential([keras.Input((16,)), keras.layers.Dense(8)])
number = 3
"""


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "COLUMNS": "200"}
    return subprocess.run(
        [warm.python(), "-m", "rdmatensor", "plan", *arguments],
        cwd=folder, env=environment, capture_output=True, text=True,
    )  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("cli")
    (path / "mine.py").write_text(MODULE)
    (path / "cluster.json").write_text('{"ps": ["a:1", "b:1"], "worker": ["c:1"]}')
    (path / "broken.json").write_text('{"ps": "a:1"}')
    module = tf.Module()
    module.f = tf.function(lambda x: x + 1.0, input_signature=[tf.TensorSpec([3])])
    tf.saved_model.save(module, str(path / "saved"), signatures=module.f)
    tf.io.write_graph(graphs.training(batch=None).graph, str(path), "graph.pb", as_text=False)
    return path


def test_a_model_on_a_cluster(folder: Path) -> None:
    done = run(
        folder, "mine:model", "--cluster", "cluster.json", "--batch-size", "4",
        "--html", "out.html", "--json", "out.json", "--bandwidth", "8Gbit", "--latency", "1ms",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    plan = TransferPlan.from_json((folder / "out.json").read_text())
    assert [link.source[:7] for link in plan.links] == ["/job:ps", "/job:ps", "/job:wo", "/job:wo"]
    assert "100.0% of the bytes static" in done.stdout
    assert "(8 Gbit/s, 1 ms)" in done.stdout
    assert "dense/kernel" in done.stdout
    assert "Transfer plan: mine:model" in (folder / "out.html").read_text()


def test_a_model_in_a_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Through a pipe, no name is broken, however long it is."""
    import keras

    monkeypatch.chdir(folder)
    monkeypatch.delenv("COLUMNS", raising=False)
    name = "a_layer_with_a_name_" + 12 * "that_is_long_"
    layers = [keras.Input((16,)), keras.layers.Dense(8, name=name)]
    keras.Sequential(layers).save("long.keras")
    words = ["long.keras", "--cluster", "cluster.json", "--batch-size", "4", "--spread", "bytes"]
    done = CliRunner().invoke(plan_command, words)
    assert done.exit_code == 0, done.output
    (line,) = [
        line for line in done.output.splitlines() if f"{name}/kernel" in line and "ps:0" in line
    ]
    assert "16 x 8" in line
    assert CliRunner().invoke(plan_command, ["long.keras"]).exit_code == 1


def test_a_graph_with_fetches_and_feeds(folder: Path) -> None:
    step = graphs.training(batch=None)
    names = [item.name for item in step.fetches]
    fetches = [part for name in names for part in ("--fetch", name)]
    done = run(
        folder, "graph.pb", *fetches, "--feed", "x:0", "--batch-size", "16", "--json", "graph.json"
    )
    assert done.returncode == 0, done.stderr
    plan = TransferPlan.from_json((folder / "graph.json").read_text())
    assert plan == analyze(step.graph, fetches=names, feeds=["x:0"], batch_size=16)
    again = run(folder, "graph.json")
    assert again.stdout == done.stdout
    slower = run(folder, "graph.json", "--transport", "tcp", "--bandwidth", "25Gbit")
    assert "(25 Gbit/s, 30 us)" in slower.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothing.pb"], "no such file"),
        (["mine:nothing"], "has no function 'nothing'"),
        (["mine:number"], "has no function 'number'"),
        (["no_such_module:f"], "neither a file nor a module:function"),
        (["mine:model"], "strategy=PlacedOn"),
        (["mine:model", "--cluster", "broken.json"], 'expected {"ps": ["host:port"'),
        (["mine:model", "--cluster", "nothing.json"], "nothing.json"),
        (["cluster.json"], "not a transfer plan"),
        (["graph.pb", "--fetch", "nothing:0"], "no tensor 'nothing:0'"),
        (["graph.pb", "--bandwidth", "fast"], "bandwidth 'fast'"),
        (["--live", "nowhere"], "'nowhere' is not a server"),
        (["mine.keras"], "no such file"),
        (["saved"], "names no tasks, so nothing of it travels: give the Keras model"),
        ([], "expected SOURCE"),
    ],
)
def test_bad_input_is_told_in_a_line(
    folder: Path, arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    done = CliRunner().invoke(plan_command, arguments)
    # Anything but an exit is a defect that users would see as a traceback.
    assert isinstance(done.exception, SystemExit)
    assert done.exit_code in (1, 2)
    assert message in done.stderr


def test_other_commands_do_not_load_the_analyzer() -> None:
    code = (
        "import sys; from rdmatensor.cli import main; main(['softroce', '--help'], standalone_mode=False);"
        "sys.exit('graph_analyzer' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0


def test_written_plans_are_documents(folder: Path) -> None:
    document = json.loads((folder / "graph.json").read_text())
    assert document["version"] == 1
    assert set(document["edges"][0]) >= {"name", "class", "reason", "bytes", "offset", "consumers"}


def test_the_example_of_the_page(root: Path, tmp_path: Path) -> None:
    text = (root / "docs/graph_analyzer.md").read_text()
    example = re.search(
        r"```python\n# mini\.py\n(.*?)```.*?With `(.*?)` in.*?`rdmatensor plan (.*?)`.*?```\n(.*?)```",
        text,
        re.DOTALL,
    )
    assert example is not None
    module, cluster, command, shown = example.groups()
    (tmp_path / "mini.py").write_text(module)
    (tmp_path / "cluster.json").write_text(cluster)
    done = run(tmp_path, *command.split())
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "plan.html").exists()
    printed = [line.strip() for line in done.stdout.splitlines()]
    assert [line for line in map(str.strip, shown.splitlines()) if line not in printed] == []

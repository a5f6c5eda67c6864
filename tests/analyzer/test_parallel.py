# SPDX-License-Identifier: Apache-2.0
"""How layers are shared: PCL-DNN's equations, its examples, and what its paper reports."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from click.testing import CliRunner

from graph_analyzer.cli import plan
from graph_analyzer.model.errors import AnalysisError
from graph_analyzer.parallel import balance, measure, timeline
from graph_analyzer.parallel.layers import NETWORKS, conv, dense, layers_of
from graph_analyzer.parallel.study import study
from graph_analyzer.report.cost import Network

VGG = list(NETWORKS["vgg_a"]())
FAST = Network(bandwidth=12.5e9)


def test_the_example_of_the_paper() -> None:
    layer = dense("fc", 4096, 4096)
    groups = balance.best_groups(layer, 256, 64)
    assert groups == pytest.approx(math.sqrt(8))
    assert round(groups) == 3
    # Three does not divide 64. Of what does, no number is better than the one chosen.
    choice = balance.choose(layer, 256, 64)
    assert (choice.way, choice.groups) == ("hybrid", 2)
    least = min(balance.hybrid_bytes(layer, 256, 64, g) for g in (1, 2, 4, 8, 16, 32, 64))
    assert choice.bytes == least


def test_intensity_depends_on_neither_kernel_nor_features() -> None:
    for k, ifm, ofm in ((1, 8, 8), (3, 64, 128), (5, 3, 96)):
        layer = conv("conv", ifm, ofm, k, 28, 28)
        assert balance.intensity(layer, 4) == pytest.approx(1.5 * 28 * 28 * 4)


@pytest.mark.parametrize("overlap", [0.0, 1.0])
def test_where_cutting_is_better(overlap: float) -> None:
    """A dense layer is better cut if it has more than 2 / (2 - overlap) outputs for each example."""
    limit = 2 / (2 - overlap) * 256
    for outputs in (int(limit) - 1, int(limit) + 1):
        layer = dense("fc", 1024, outputs)
        cut = balance.model_bytes(layer, 256) < balance.data_bytes(layer, overlap)
        assert cut == (outputs > limit)


def test_best_groups_are_the_least_bytes() -> None:
    for layer in VGG:
        ideal = balance.best_groups(layer, 512, 128)
        if 1 < ideal < 128:
            here = balance.hybrid_bytes(layer, 512, 128, ideal)
            for other in (ideal * 0.9, ideal * 1.1):
                assert balance.hybrid_bytes(layer, 512, 128, other) > here


def test_networks_are_those_of_the_paper() -> None:
    """VGG-A: 133 million parameters, 7.6 G multiplications. OverFeat, the fast one: 146 million, 2.8 G."""
    for name, weights, macs in (("vgg_a", 133e6, 7.6e9), ("overfeat_fast", 146e6, 2.8e9)):
        layers = list(NETWORKS[name]())
        assert sum(each.weights for each in layers) == pytest.approx(weights, rel=0.005)
        assert sum(each.flops for each in layers) / 2 == pytest.approx(macs, rel=0.01)


def test_reported_scalings() -> None:
    """The model is an upper bound of what was measured, and no further off than the page says."""
    for each in timeline.REPORTED:
        computed = each.computed(list(NETWORKS[each.network]()))
        assert each.speedup < computed <= each.workers
        assert computed / each.speedup < 1.75


def test_efficiency_of_vgg_a() -> None:
    found = timeline.point(VGG, timeline.by_speed(VGG, 1.4e12), 512, 128, FAST)
    assert found.data_efficiency >= 0.85
    assert found.best_efficiency >= found.data_efficiency


@pytest.mark.parametrize("ahead", [False, True])
def test_a_step_is_as_long_as_what_bounds_it(ahead: bool) -> None:
    for bandwidth in (1e7, 1e8, 1e9, 1e10, 1e12):
        network, workers, batch = Network(bandwidth=bandwidth, latency=0), 8, 32
        compute = timeline.by_speed(VGG, 1e12)
        shares = balance.all_data(VGG, batch, workers)
        step = timeline.step_seconds(shares, compute, batch, workers, network, ahead)
        wire = timeline.wire_seconds(shares, batch, workers, network)
        own = timeline.compute_seconds(compute, batch / workers)
        forward = sum(each.forward for each in compute) * batch / workers
        assert max(own, wire) * 0.999 <= step
        # Exchanges begin after the forward pass, which begins with the layer whose weights come last. So to
        # wait for each layer's weights instead of all gains little.
        assert step <= max(own, wire + forward) + own / 10


def test_reads_keras_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tiny_parallel.py").write_text(
        "import keras\n"
        "def model():\n"
        "    inner = keras.Sequential([keras.Input((8,)), keras.layers.Dense(5)])\n"
        "    return keras.Sequential([keras.Input((6, 6, 3)),\n"
        "        keras.layers.Conv2D(4, 3, strides=2, padding='same'), keras.layers.BatchNormalization(),\n"
        "        keras.layers.Flatten(), keras.layers.Dense(8), inner])\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    html = tmp_path / "plan.html"
    words = ["--parallel", "tiny_parallel:model", "--workers", "4", "--gbps", "10"]
    done = CliRunner().invoke(plan, [*words, "--html", str(html)])
    assert done.exit_code == 0, done.output
    assert "40 Gbit" not in done.output
    assert "10 Gbit/s" in done.output
    assert "a batch of 16 in all" in done.output
    assert "of a whole forward and backward" in " ".join(done.output.split())
    text = html.read_text()
    assert "Content-Security-Policy" in text and "<polyline" in text

    import tiny_parallel  # type: ignore[import-not-found]

    saved = str(tmp_path / "saved.keras")
    tiny_parallel.model().save(saved)
    again = CliRunner().invoke(plan, ["--parallel", saved, *words[2:], "--gflops", "10"])
    assert again.exit_code == 0, again.output
    assert "conv2d" in again.output and "10 Gflop/s" in again.output
    missing = CliRunner().invoke(plan, ["--parallel", str(tmp_path / "missing.keras")])
    assert missing.exit_code == 1 and "does not load as a Keras model" in missing.output
    first, norm, second, third = layers_of(tiny_parallel.model())
    assert (first.weights, first.inputs, first.positions) == (4 * 27 + 4, 108, 9)
    assert (first.kernel, first.stride, first.image) == ((3, 3, 3, 4), 2, (6, 6))
    assert norm.weights == 8 and not norm.can_be_cut
    assert (second.kernel, second.positions) == ((36, 8), 1)
    assert third.kernel == (8, 5)


def test_small_batches_compute_more_slowly() -> None:
    line = measure._line((2.0, 3.0), (5.0, 3.0), 4)
    assert [line.ahead(1), line.ahead(4), line.ahead(16)] == [2, 5, 17]
    # Where noise hides what an example takes, nothing is fixed.
    assert [line.back(4), line.back(8)] == [3, 6]


def test_what_cannot_be_planned() -> None:
    import keras

    with pytest.raises(AnalysisError, match="not built"):
        layers_of(keras.Sequential([keras.layers.Dense(3)]))
    with pytest.raises(AnalysisError, match="no layer with weights"):
        layers_of(keras.Sequential([keras.Input((3,)), keras.layers.Flatten()]))
    with pytest.raises(AnalysisError, match="fixed shape"):
        layers_of(keras.Sequential([keras.Input((None, 3)), keras.layers.Dense(3)]))
    with pytest.raises(AnalysisError, match="at least one example for each"):
        study("vgg_a", "", 4, 8, FAST, 1e12)
    done = CliRunner().invoke(plan, ["--parallel", "vgg_a", "--gbps", "1", "--bandwidth", "1Gbit"])
    assert done.exit_code == 1
    assert "give one of them" in done.output

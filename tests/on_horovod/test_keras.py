# SPDX-License-Identifier: Apache-2.0
"""rdmatensor.horovod.tensorflow.keras: fit() of a program for Horovod, callbacks, and saved models."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from on_horovod import keras_elastic
from on_horovod.programs import HERE, launched, trained
from support import ROOT

pytestmark = pytest.mark.timeout(300)


def test_example_of_horovod_equals_one_process(tmp_path: Path) -> None:
    program = HERE / "keras_mnist.py"
    (alone,) = trained(1, tmp_path, program, "16", str(tmp_path))
    for each in trained(2, tmp_path, program, "8", str(tmp_path)):
        np.testing.assert_allclose(each["values"], alone["values"], atol=1e-5)
        np.testing.assert_allclose(each["loss"], alone["loss"], atol=1e-5)
        np.testing.assert_allclose(each["lr"], [0.05, 0.025, 0.0125])
    assert (tmp_path / "2.keras").exists()


def test_optimizers_callbacks_and_errors(tmp_path: Path) -> None:
    done = launched(2, HERE / "keras_cases.py", str(tmp_path))
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.count("OK") == 2
    assert done.stdout.count("finished gradual learning rate warmup") == 1


def test_elastic_training_outlives_processes(tmp_path: Path) -> None:
    """Rank 0 is lost, and then the other one, which has its state by then: as if nothing had happened."""
    program = HERE / "keras_elastic.py"
    done = launched(2, program, str(tmp_path), "0:1", "1:2", options=["--restarts", "2"])
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stderr.count("is started anew") == 2
    inputs, labels = keras_elastic.rows()
    alone = keras_elastic.model()
    alone.compile(keras_elastic.optimizer(), loss="mse")
    settings = {"batch_size": keras_elastic.ROWS, "epochs": keras_elastic.EPOCHS, "verbose": 0}
    alone.fit(inputs, labels, shuffle=False, **settings)
    for rank in range(2):
        found = np.load(tmp_path / f"{rank}.npz")
        assert found["epoch"] == keras_elastic.EPOCHS
        for number, weight in enumerate(alone.get_weights()):
            np.testing.assert_allclose(found[f"arr_{number}"], weight, atol=1e-5)


def test_example() -> None:
    done = launched(2, ROOT / "examples" / "horovod_keras.py")
    assert done.returncode == 0, done.stderr[-4000:]
    assert "[worker 0] 2 processes, accuracy 1.000" in done.stdout
    assert "[worker 1] Epoch" not in done.stdout

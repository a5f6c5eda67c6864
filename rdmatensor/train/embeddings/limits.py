# SPDX-License-Identifier: Apache-2.0
"""Tell which tables may have owners: those that only their layer uses, as Keras's Embedding does."""

from __future__ import annotations

from typing import Any

import keras

from ...errors import UsageError


def check_model(model: Any) -> None:
    """Raise UsageError if parallelize() cannot take the model, and say what to do."""
    if not isinstance(model, keras.Model) or not model.built:
        raise UsageError("parallelize() takes a Keras model that is built: give it an Input")
    if hasattr(model, "_rdmatensor_explanation"):
        raise UsageError("the model was parallelized already: call parallelize() once for it")
    if hasattr(model, "_rdmatensor_groups"):
        raise UsageError("the model was split: split() and parallelize() cannot share a model")
    if getattr(getattr(model, "optimizer", None), "built", False):
        raise UsageError(
            "parallelize the model before its optimizer is built: before compile(), or with a new optimizer"
        )


def why_not_by_rows(layer: Any) -> str | None:
    """Return why Keras's optimizer has to update the table of an Embedding; None if we can."""
    if layer.quantization_mode:
        return "it is quantized"
    dtype = keras.backend.standardize_dtype(layer._embeddings.dtype)
    return None if dtype == "float32" else f"its numbers are {dtype}, not float32"


def why_not_owned(layer: Any, model: Any) -> str | None:
    """Return why every process needs the whole table of a built Embedding; None if owners will do."""
    obstacle = why_not_by_rows(layer)
    if obstacle is not None:
        return obstacle
    if getattr(layer, "lora_enabled", False):
        return "it has LoRA weights, which are of the whole table"
    if layer.embeddings_constraint is not None:
        return "it has a constraint, which looks at the whole table"
    if layer.embeddings_regularizer is not None:
        return "it has a regularizer, which looks at the whole table"
    if type(layer).call is not keras.layers.Embedding.call:
        return f"{type(layer).__name__} may use the whole table in its call()"
    table = layer._embeddings
    if any(each is not layer and _uses(each, table) for each in [model, *model._flatten_layers()]):
        return "another layer uses its table, too"
    return None


def _uses(layer: Any, table: Any) -> bool:
    own = [*layer._trainable_variables, *layer._non_trainable_variables]
    nodes = [node for each in getattr(layer, "_operations", ()) for node in each._inbound_nodes]
    given = [each for node in nodes for each in keras.tree.flatten(_arguments_of(node))]
    held = [each for each in vars(layer).values() if isinstance(each, keras.Variable)]
    return any(each is table for each in (*own, *given, *held))


def _arguments_of(node: Any) -> Any:
    arguments = getattr(node, "arguments", None)
    return [] if arguments is None else [list(arguments.args), dict(arguments.kwargs)]

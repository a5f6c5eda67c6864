# SPDX-License-Identifier: Apache-2.0
"""The model whose plan README.md shows; CONTRIBUTING.md says how the picture is made."""

from __future__ import annotations

from typing import Any

import keras


def model() -> Any:
    return keras.applications.MobileNetV2(weights=None)

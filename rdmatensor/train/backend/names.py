# SPDX-License-Identifier: Apache-2.0
"""Make names that are the same in all processes.

Keras numbers the names that it makes ("dense_3"), by how many objects this process has made before. Processes
that train one model may have made others besides, so they compare names without these numbers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import keras

# What has names of its class and a number.
_NAMED = keras.layers.Layer, keras.optimizers.Optimizer, keras.metrics.Metric, keras.losses.Loss
# Models and wrappers, by the names that Keras gives them.
_AROUND = "sequential|functional|time_distributed|bidirectional|rnn|spectral_normalization"
# What Keras makes of the names of classes, as far as it has been asked for.
_known = {"variable"}


def plain(text: str) -> str:
    """Return the text without the numbers that Keras has put behind names.

    Names that a program gives stay whole, unless they end with the name of a class and a number.
    """
    return re.sub(r"\w+", lambda word: _plain_word(word.group()), text)


def unwrapped(path: str) -> str:
    """Return the path of a variable, which is plain, without the models and wrappers around its layer.

    A layer that was built alone, such as by adapt(), has no model in its path, and one that was loaded from a
    file no wrapper. Nor have their slots, in whose names an optimizer puts those of the variables.
    """
    *around, last = re.sub(f"^(({_AROUND})/)+(?=.)", "", path).split("/")
    around = [*(each for each in around[:-1] if not re.fullmatch(_AROUND, each)), *around[-1:]]
    return "/".join([*around, re.sub(f"(?<![^_])({_AROUND})_", "", last)])


def _plain_word(word: str) -> str:
    done, begin = "", 0
    for number in re.finditer(r"_\d+(?=_|$)", word):
        stem = word[begin : number.start()]
        done += stem if _ends_with_class(stem.lower()) else stem + number.group()
        begin = number.end()
    return done + word[begin:]


def _ends_with_class(stem: str) -> bool:
    """Return whether a name ends with that of a class, as Keras writes it.

    Wrappers put something in front of a layer's name, and optimizers the names of models.
    """
    ends = {stem[i + 1 :] for i, each in enumerate(stem) if each == "_"} | {stem}
    if ends & _known:
        return True
    _known.update(_classes())
    return bool(ends & _known)


def _classes() -> Iterator[str]:
    left = list[type](_NAMED)
    while left:
        each = left.pop()
        name = re.sub("(.)([A-Z][a-z]+)", r"\1_\2", each.__name__)
        yield re.sub("([a-z])([A-Z])", r"\1_\2", name).lower()
        left.extend(each.__subclasses__())

# SPDX-License-Identifier: Apache-2.0
"""horovod.keras over rdmatensor: the same as rdmatensor.horovod.tensorflow.keras."""

from ..tensorflow.keras import *  # noqa: F403
from ..tensorflow.keras import __all__ as __all__

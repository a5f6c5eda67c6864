# SPDX-License-Identifier: Apache-2.0
# The compiled module: its types are C's, checked by the C compiler when it is built.
from typing import Any

ffi: Any
lib: Any

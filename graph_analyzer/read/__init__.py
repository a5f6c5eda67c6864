# SPDX-License-Identifier: Apache-2.0
"""Reading graphs: from Keras models, functions, files and GraphDefs, with devices and shapes."""

# SPDX-License-Identifier: Apache-2.0
"""Connect rdmatensor.train to the framework that runs the model."""

# SPDX-License-Identifier: Apache-2.0
"""How to share the layers of a model among workers: PCL-DNN's balance of computation and communication."""

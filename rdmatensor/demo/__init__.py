# SPDX-License-Identifier: Apache-2.0
"""A training run on one machine, over stock gRPC and over grpc+rdma: ``python -m rdmatensor.demo``."""

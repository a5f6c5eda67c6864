# SPDX-License-Identifier: Apache-2.0
"""The demo, `python -m rdmatensor.demo`: trains on one machine over stock gRPC and over grpc+rdma."""

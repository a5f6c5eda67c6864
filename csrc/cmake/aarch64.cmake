# SPDX-License-Identifier: Apache-2.0
# A toolchain for ARM64 on another processor: Debian's cross compiler, and QEMU's emulator of programs.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64 -L /usr/aarch64-linux-gnu)
# The headers of rdma-core are the same for all processors. The C library's own are found first.
set(CMAKE_C_FLAGS_INIT "-idirafter /usr/include")

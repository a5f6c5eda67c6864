# SPDX-License-Identifier: Apache-2.0
# Builds the plugin when the one TensorFlow minor version that it is written for is installed.
# Sets plugin_reason (empty when built), tensorflow_version, tensorflow_dir, tensorflow_built_for.

set(supported_minor 21)  # of TensorFlow 2: the plugin subclasses C++ classes that change with every minor
set(plugin_reason "")

find_package(Python3 COMPONENTS Interpreter REQUIRED)
execute_process(
  COMMAND ${Python3_EXECUTABLE} ${CMAKE_SOURCE_DIR}/csrc/cmake/find_tensorflow.py
  OUTPUT_VARIABLE tensorflow_found RESULT_VARIABLE failed)
if(failed)
  message(FATAL_ERROR "rdmatensor: looking for TensorFlow with ${Python3_EXECUTABLE} failed")
endif()

file(GLOB plugin_sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/csrc/tensorflow/*.cc)
if(NOT plugin_sources)
  set(plugin_reason "csrc/tensorflow holds no sources")
elseif(NOT tensorflow_found)
  set(plugin_reason "Python ${Python3_EXECUTABLE} has no TensorFlow (pip install 'tensorflow==2.${supported_minor}.*', then install rdmatensor with --no-build-isolation; RDMATENSOR_TENSORFLOW=/path/to/tensorflow names another)")
else()
  list(GET tensorflow_found 0 tensorflow_version)
  list(GET tensorflow_found 1 tensorflow_dir)
  if(NOT tensorflow_version MATCHES "^2\\.${supported_minor}\\.")
    set(plugin_reason "TensorFlow ${tensorflow_version} is installed, this release supports 2.${supported_minor}.x only")
  endif()
endif()
if(plugin_reason)
  return()
endif()

set(tensorflow_built_for ${tensorflow_version})
enable_language(CXX)

# How code is compiled that uses TensorFlow's headers.
add_library(tensorflow_headers INTERFACE)
target_include_directories(tensorflow_headers SYSTEM INTERFACE
  ${tensorflow_dir}/include
  ${tensorflow_dir}/include/external/com_github_grpc_grpc/include
  ${tensorflow_dir}/include/external/farmhash_archive/src
  ${tensorflow_dir}/include/external/com_google_protobuf/src)
# C++ ABI: TensorFlow's class layouts depend on NDEBUG, its tensors on the alignment. Both hold for
# every build type, so that a Debug build of ours is still compatible with the wheel.
target_compile_definitions(tensorflow_headers INTERFACE
  NDEBUG EIGEN_MAX_ALIGN_BYTES=64 _GLIBCXX_USE_CXX11_ABI=1)
target_compile_features(tensorflow_headers INTERFACE cxx_std_17)

add_library(rdmatensor_tensorflow MODULE ${plugin_sources})
target_include_directories(rdmatensor_tensorflow PRIVATE ${CMAKE_SOURCE_DIR}/csrc
                                                         ${CMAKE_SOURCE_DIR}/csrc/tensorflow)
target_compile_definitions(rdmatensor_tensorflow PRIVATE RDT_TENSORFLOW_MINOR=${supported_minor})
set_target_properties(rdmatensor_tensorflow PROPERTIES
  CXX_EXTENSIONS OFF CXX_STANDARD_REQUIRED ON BUILD_WITH_INSTALL_RPATH ON)
# TensorFlow's libraries are found by soname: it loaded them before it loads any plugin. So no rpath
# to them, and none of the libraries inside TensorFlow (protobuf, absl, grpc) is linked again.
target_link_directories(rdmatensor_tensorflow PRIVATE ${tensorflow_dir})
target_link_libraries(rdmatensor_tensorflow PRIVATE
  rdmatensor_options rdmatensor_core tensorflow_headers
  -l:libtensorflow_framework.so.2 -l:libtensorflow_cc.so.2)
# A symbol that this TensorFlow does not have is an error here, not when a user imports TensorFlow.
target_link_options(rdmatensor_tensorflow PRIVATE -Wl,-z,defs)
install(TARGETS rdmatensor_tensorflow LIBRARY DESTINATION rdmatensor)

# TensorFlow loads every library in site-packages/tensorflow-plugins; one that does not load breaks
# `import tensorflow`. The shim has no TensorFlow symbol and decides whether to load the plugin.
file(GLOB shim_sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/csrc/tensorflow/shim/*.c)
add_library(rdmatensor_shim MODULE ${shim_sources})
target_compile_definitions(rdmatensor_shim PRIVATE RDT_TENSORFLOW_MINOR=${supported_minor})
target_link_libraries(rdmatensor_shim PRIVATE rdmatensor_options ${CMAKE_DL_LIBS})
target_link_options(rdmatensor_shim PRIVATE -Wl,-z,defs)
install(TARGETS rdmatensor_shim LIBRARY DESTINATION tensorflow-plugins)

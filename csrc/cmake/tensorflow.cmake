# SPDX-License-Identifier: Apache-2.0
# Builds a plugin for each TensorFlow that is found, and one shim, which loads the plugin that fits.
# Sets plugin_reason (empty when built) and tensorflow_built_for, the versions.

# Of TensorFlow 2: a plugin subclasses C++ classes that change with every minor version.
set(supported_minors 20 21 22)
set(supported_text "2.20.x, 2.21.x and 2.22.x")
set(plugin_reason "")

find_package(Python3 COMPONENTS Interpreter REQUIRED)
execute_process(
  COMMAND ${Python3_EXECUTABLE} ${CMAKE_SOURCE_DIR}/csrc/cmake/find_tensorflow.py
  OUTPUT_VARIABLE tensorflow_found RESULT_VARIABLE failed)
if(failed)
  message(FATAL_ERROR "rdmatensor: looking for TensorFlow with ${Python3_EXECUTABLE} failed")
endif()

file(GLOB_RECURSE plugin_sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/csrc/tensorflow/*.cc)
file(GLOB operation_sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/csrc/tensorflow/ops/*.cc)
list(REMOVE_ITEM plugin_sources ${operation_sources})
if(NOT plugin_sources)
  set(plugin_reason "csrc/tensorflow holds no sources")
elseif(NOT tensorflow_found)
  set(plugin_reason "Python ${Python3_EXECUTABLE} has no TensorFlow (pip install 'tensorflow==2.21.*', then install rdmatensor with --no-build-isolation; RDMATENSOR_TENSORFLOW=/path/to/tensorflow names another)")
endif()

# "<version>;<folder>;<version>;<folder>...": tensorflow_dir_<minor> and tensorflow_version_<minor> for each.
set(plugin_minors "")
set(plugin_versions "")
while(tensorflow_found AND NOT plugin_reason)
  list(POP_FRONT tensorflow_found version folder)
  string(REGEX MATCH "^2\\.([0-9]+)\\." matched "${version}")
  set(minor "${CMAKE_MATCH_1}")
  if(NOT matched OR NOT minor IN_LIST supported_minors)
    set(plugin_reason "TensorFlow ${version} is installed, this release supports ${supported_text} only")
  elseif(minor IN_LIST plugin_minors)
    message(FATAL_ERROR "rdmatensor: RDMATENSOR_TENSORFLOW names two TensorFlow 2.${minor}: name one")
  endif()
  list(APPEND plugin_minors ${minor})
  list(APPEND plugin_versions ${version})
  set(tensorflow_dir_${minor} ${folder})
  set(tensorflow_version_${minor} ${version})
endwhile()
if(plugin_reason)
  return()
endif()

list(JOIN plugin_versions ", " tensorflow_built_for)
enable_language(CXX)

# How code is compiled that uses the headers of TensorFlow 2.<minor>.
function(add_tensorflow_headers minor folder)
  add_library(tensorflow_headers_${minor} INTERFACE)
  target_include_directories(tensorflow_headers_${minor} SYSTEM INTERFACE
    ${folder}/include
    ${folder}/include/external/com_github_grpc_grpc/include
    ${folder}/include/external/grpc/include # since 2.22
    ${folder}/include/external/farmhash_archive/src
    ${folder}/include/external/com_google_protobuf/src)
  # C++ ABI: TensorFlow's class layouts depend on NDEBUG, its tensors on the alignment. Both hold for
  # every build type, so that a Debug build of ours is still compatible with the wheel.
  target_compile_definitions(tensorflow_headers_${minor} INTERFACE
    NDEBUG EIGEN_MAX_ALIGN_BYTES=64 _GLIBCXX_USE_CXX11_ABI=1 RDT_TENSORFLOW_MINOR=${minor})
  target_compile_features(tensorflow_headers_${minor} INTERFACE cxx_std_17)
endfunction()

# Nearly all of a file's time goes into TensorFlow's headers: a room is compiled at once, and reads them once.
foreach(source ${plugin_sources} ${operation_sources})
  get_filename_component(room ${source} DIRECTORY)
  get_filename_component(room ${room} NAME)
  set_source_files_properties(${source} PROPERTIES UNITY_GROUP ${room})
endforeach()

# A library that is loaded into TensorFlow 2.<minor> in `folder`.
function(add_tensorflow_library name minor folder)
  add_library(${name} MODULE ${ARGN})
  # The sources' own folder: graph_order.cc includes the table that the plugin shares with graph_analyzer.
  target_include_directories(${name} PRIVATE ${CMAKE_SOURCE_DIR}/csrc/tensorflow ${CMAKE_SOURCE_DIR})
  set_target_properties(${name} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP
    CXX_EXTENSIONS OFF CXX_STANDARD_REQUIRED ON BUILD_WITH_INSTALL_RPATH ON)
  # TensorFlow's libraries are found by soname: it loaded them before it loads any plugin. So no rpath
  # to them, and none of the libraries inside TensorFlow (protobuf, absl, grpc) is linked again.
  target_link_directories(${name} PRIVATE ${folder})
  target_link_libraries(${name} PRIVATE
    rdmatensor_options rdmatensor_core tensorflow_headers_${minor}
    -l:libtensorflow_framework.so.2 -l:libtensorflow_cc.so.2)
  # A symbol that this TensorFlow does not have is an error here, not when a user imports TensorFlow.
  target_link_options(${name} PRIVATE -Wl,-z,defs)
  install(TARGETS ${name} LIBRARY DESTINATION rdmatensor)
endfunction()

# What it takes to vectorise loops of any length.
set_source_files_properties(${CMAKE_SOURCE_DIR}/csrc/tensorflow/ops/start_kernel.cc
  ${CMAKE_SOURCE_DIR}/csrc/tensorflow/ops/row_kernels.cc
  ${CMAKE_SOURCE_DIR}/csrc/tensorflow/rows/rules.cc PROPERTIES
  COMPILE_OPTIONS "-O3;-fno-math-errno")

function(add_plugin minor folder version)
  set(plugin rdmatensor_tensorflow_2_${minor})
  add_tensorflow_library(${plugin} ${minor} ${folder} ${plugin_sources})
  # Other builds of this version may differ in what no symbol tells: the shim compares.
  set(record ${CMAKE_SOURCE_DIR}/csrc/cmake/record_tensorflow.py)
  set_target_properties(${plugin} PROPERTIES LINK_DEPENDS ${record})
  add_custom_command(TARGET ${plugin} POST_BUILD VERBATIM
    COMMAND ${Python3_EXECUTABLE} ${record} ${CMAKE_NM} $<TARGET_FILE:${plugin}> ${folder} ${version})
  install(FILES $<TARGET_FILE_DIR:${plugin}>/lib${plugin}.layout DESTINATION rdmatensor)
endfunction()

foreach(minor ${plugin_minors})
  add_tensorflow_headers(${minor} ${tensorflow_dir_${minor}})
  add_plugin(${minor} ${tensorflow_dir_${minor}} ${tensorflow_version_${minor}})
  # rdmatensor.train loads it by tf.load_op_library.
  add_tensorflow_library(rdmatensor_ops_2_${minor} ${minor} ${tensorflow_dir_${minor}} ${operation_sources})
endforeach()
# For programs that are built once: unit tests and fuzzers.
list(GET plugin_minors -1 minor)
add_library(tensorflow_headers ALIAS tensorflow_headers_${minor})

# TensorFlow loads every library in site-packages/tensorflow-plugins; one that does not load breaks
# `import tensorflow`. The shim has no TensorFlow symbol and decides which plugin to load, if any.
file(GLOB shim_sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/csrc/tensorflow/shim/*.c)
list(JOIN plugin_minors "," minors)
add_library(rdmatensor_shim MODULE ${shim_sources})
target_compile_definitions(rdmatensor_shim PRIVATE RDT_TENSORFLOW_MINORS=${minors})
if(RDT_PLUGIN_FOLDER)
  target_compile_definitions(rdmatensor_shim PRIVATE RDT_PLUGIN_FOLDER="${RDT_PLUGIN_FOLDER}")
endif()
target_link_libraries(rdmatensor_shim PRIVATE rdmatensor_options ${CMAKE_DL_LIBS})
target_link_options(rdmatensor_shim PRIVATE -Wl,-z,defs)
install(TARGETS rdmatensor_shim LIBRARY DESTINATION tensorflow-plugins)

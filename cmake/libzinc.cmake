# SPDX-License-Identifier: Apache-2.0
# libzinc.so and libzinc.a: every layer up to api, whose functions (zinc_*) are all that the shared
# one shows. The program `zinc` links the layers themselves.
include(GNUInstallDirs)
set(libzinc_layers base config device comm tensor kernels optim data model zero ckpt engine api)
set(libzinc_objects)
foreach(layer ${libzinc_layers})
  list(APPEND libzinc_objects $<TARGET_OBJECTS:zn_${layer}>)
endforeach()
set(libzinc_map ${PROJECT_SOURCE_DIR}/src/api/libzinc.map)

add_library(zinc_shared SHARED ${libzinc_objects})
add_library(zinc_static STATIC ${libzinc_objects})
foreach(library zinc_shared zinc_static)
  set_target_properties(${library} PROPERTIES OUTPUT_NAME zinc LINKER_LANGUAGE C)
  target_include_directories(${library} INTERFACE
    $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
endforeach()
set_target_properties(zinc_shared PROPERTIES
  VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR} LINK_DEPENDS ${libzinc_map}
  EXPORT_NAME zinc)
target_link_libraries(zinc_shared PRIVATE zn_api) # for the libraries under it: its objects are in
target_link_options(zinc_shared PRIVATE LINKER:--version-script=${libzinc_map})

# What a program that links libzinc.a needs as well.
set(ZINC_PC_REQUIRES "jansson libpcre2-8 yaml-0.1")
set(ZINC_PC_LIBS "-lutf8proc -lpthread -lm")
if(ZINC_DNNL)
  string(PREPEND ZINC_PC_LIBS "-ldnnl ")
endif()
if(ZINC_OPENMP)
  string(PREPEND ZINC_PC_LIBS "-fopenmp ")
endif()
if(ZINC_MPI)
  string(APPEND ZINC_PC_REQUIRES " ompi-c")
endif()
if(ZINC_URING)
  string(APPEND ZINC_PC_REQUIRES " liburing")
endif()
configure_file(${PROJECT_SOURCE_DIR}/cmake/zinc.pc.in ${PROJECT_BINARY_DIR}/zinc.pc @ONLY)

install(TARGETS zinc_shared EXPORT zinc_targets LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(TARGETS zinc_static ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/zinc DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
  FILES_MATCHING PATTERN "*.h")
install(FILES ${PROJECT_BINARY_DIR}/zinc.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
install(EXPORT zinc_targets NAMESPACE zinc:: FILE zinc-config.cmake
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/zinc)

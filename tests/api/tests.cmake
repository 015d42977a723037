# SPDX-License-Identifier: Apache-2.0
find_package(Python3 REQUIRED COMPONENTS Interpreter)
add_test(NAME api.doc_quotes COMMAND ${Python3_EXECUTABLE} ${CMAKE_CURRENT_LIST_DIR}/doc_quotes.py
  ${PROJECT_SOURCE_DIR})

if(ZINC_MPI AND NOT ZINC_SANITIZE)
  add_executable(api_mpi_ranks ${CMAKE_CURRENT_LIST_DIR}/mpi_ranks.c)
  target_link_libraries(api_mpi_ranks PRIVATE zinc_shared m)
  add_test(NAME api.mpi_ranks
    COMMAND ${MPIEXEC_EXECUTABLE} ${MPIEXEC_NUMPROC_FLAG} 2 $<TARGET_FILE:api_mpi_ranks>)
  set_tests_properties(api.mpi_ranks PROPERTIES ENVIRONMENT "${mpi_env}" PROCESSORS 2 TIMEOUT 120)
endif()

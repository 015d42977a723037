# SPDX-License-Identifier: Apache-2.0
find_package(Python3 COMPONENTS Interpreter REQUIRED)
if(TARGET zinc)
  add_test(NAME bench.compare COMMAND ${Python3_EXECUTABLE} ${CMAKE_CURRENT_LIST_DIR}/compare.py
           $<TARGET_FILE:zinc> ${PROJECT_SOURCE_DIR}/bench)
  set_tests_properties(bench.compare PROPERTIES TIMEOUT 60 PROCESSORS 2)
endif()
if(TARGET zinc AND ZINC_MPI)
  add_test(NAME bench.mpi COMMAND zinc bench comm.mpi.all_gather.bf16.256Ki_elements --comm mpi --threads 2 --seconds 0)
  set_tests_properties(bench.mpi PROPERTIES TIMEOUT 60 PROCESSORS 2
    PASS_REGULAR_EXPRESSION "^comm.mpi.all_gather.bf16.256Ki_elements +[0-9.]+ GB/s +[0-9]+% of [0-9.]+\n$")
endif()

# SPDX-License-Identifier: Apache-2.0
find_package(Python3 COMPONENTS Interpreter REQUIRED)
if(TARGET zinc)
  add_test(NAME bench.compare COMMAND ${Python3_EXECUTABLE} ${CMAKE_CURRENT_LIST_DIR}/compare.py
           $<TARGET_FILE:zinc> ${PROJECT_SOURCE_DIR}/bench)
  set_tests_properties(bench.compare PROPERTIES TIMEOUT 60 PROCESSORS 2)
endif()

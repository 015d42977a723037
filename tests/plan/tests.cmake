# SPDX-License-Identifier: Apache-2.0
# Plans beside whole training runs of the program.
find_package(Python3 COMPONENTS Interpreter REQUIRED)
if(TARGET zinc)
  foreach(case states knobs offload advice program)
    add_test(NAME plan.${case} COMMAND ${Python3_EXECUTABLE} ${CMAKE_SOURCE_DIR}/tests/plan/against_training.py
             $<TARGET_FILE:zinc> ${CMAKE_SOURCE_DIR}/tests/data ${case})
    set_tests_properties(plan.${case} PROPERTIES TIMEOUT 240 PROCESSORS 2)
  endforeach()
endif()

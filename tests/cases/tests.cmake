# SPDX-License-Identifier: Apache-2.0
# What users of such trainers have run into, each as a small run of the program (README.md has the list).
find_package(Python3 COMPONENTS Interpreter REQUIRED)
if(TARGET zinc)
  foreach(file frozen fsdp inputs loss precision schedule stages)
    add_test(NAME cases.${file} COMMAND ${Python3_EXECUTABLE} ${CMAKE_SOURCE_DIR}/tests/cases/${file}.py
             $<TARGET_FILE:zinc> ${CMAKE_SOURCE_DIR}/tests/data)
    set_tests_properties(cases.${file} PROPERTIES TIMEOUT 240 PROCESSORS 2)
  endforeach()
endif()

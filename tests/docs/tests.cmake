# SPDX-License-Identifier: Apache-2.0
# The documents are true: commands run and print what stands there, quoted messages exist.
find_package(Python3 REQUIRED COMPONENTS Interpreter)
if(TARGET zinc AND NOT ZINC_SANITIZE)
  add_test(NAME docs.tutorial COMMAND ${Python3_EXECUTABLE} ${CMAKE_CURRENT_LIST_DIR}/tutorial.py
    $<TARGET_FILE:zinc> ${PROJECT_SOURCE_DIR}/docs/tutorial.md)
  set_tests_properties(docs.tutorial PROPERTIES TIMEOUT 600 PROCESSORS 2)
  add_test(NAME docs.choosing COMMAND ${Python3_EXECUTABLE} ${CMAKE_CURRENT_LIST_DIR}/choosing.py
    $<TARGET_FILE:zinc> ${PROJECT_SOURCE_DIR}/tests/data ${PROJECT_SOURCE_DIR}/docs/choosing.md)
  set_tests_properties(docs.choosing PROPERTIES TIMEOUT 240 PROCESSORS 2)
endif()
add_test(NAME docs.messages COMMAND ${Python3_EXECUTABLE} ${CMAKE_CURRENT_LIST_DIR}/messages.py ${PROJECT_SOURCE_DIR})

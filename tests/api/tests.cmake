# SPDX-License-Identifier: Apache-2.0
find_package(Python3 REQUIRED COMPONENTS Interpreter)
add_test(NAME api.doc_quotes COMMAND ${Python3_EXECUTABLE} ${CMAKE_CURRENT_LIST_DIR}/doc_quotes.py
  ${PROJECT_SOURCE_DIR})

# SPDX-License-Identifier: Apache-2.0
# What a program that uses the installed library relies on.
add_executable(abi_sizes ${CMAKE_CURRENT_LIST_DIR}/abi_sizes.c)
target_link_libraries(abi_sizes PRIVATE zinc_shared)
if(NOT ZINC_SANITIZE)
  add_test(NAME abi.lists COMMAND ${CMAKE_CURRENT_LIST_DIR}/abi.sh $<TARGET_FILE:zinc_shared>
    $<TARGET_FILE:abi_sizes> ${PROJECT_SOURCE_DIR}/tools)
  add_test(NAME abi.installed COMMAND ${CMAKE_CURRENT_LIST_DIR}/installed.sh ${PROJECT_BINARY_DIR}
    ${PROJECT_SOURCE_DIR}/examples)
  set_tests_properties(abi.lists abi.installed PROPERTIES TIMEOUT 120)
endif()

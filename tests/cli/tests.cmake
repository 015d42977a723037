# SPDX-License-Identifier: Apache-2.0
if(TARGET zinc)
  add_test(NAME cli.program COMMAND bash ${CMAKE_CURRENT_LIST_DIR}/program.sh $<TARGET_FILE:zinc>)
  add_test(NAME cli.manual COMMAND bash ${CMAKE_CURRENT_LIST_DIR}/manual.sh $<TARGET_FILE:zinc>)
  set_tests_properties(cli.program cli.manual PROPERTIES TIMEOUT 60)
endif()
add_test(NAME cli.checks COMMAND bash ${CMAKE_CURRENT_LIST_DIR}/checks.sh ${PROJECT_SOURCE_DIR})
set_tests_properties(cli.checks PROPERTIES TIMEOUT 60)

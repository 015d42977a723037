# SPDX-License-Identifier: Apache-2.0
if(TARGET zinc)
  add_test(NAME config.command
           COMMAND bash ${CMAKE_CURRENT_LIST_DIR}/check_command.sh $<TARGET_FILE:zinc>
                   ${CMAKE_CURRENT_SOURCE_DIR}/data/config)
  set_tests_properties(config.command PROPERTIES TIMEOUT 60)
endif()

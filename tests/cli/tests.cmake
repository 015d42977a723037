# SPDX-License-Identifier: Apache-2.0
if(TARGET zinc)
  add_test(NAME cli.program COMMAND bash ${CMAKE_CURRENT_LIST_DIR}/program.sh $<TARGET_FILE:zinc>)
  add_test(NAME cli.manual COMMAND bash ${CMAKE_CURRENT_LIST_DIR}/manual.sh $<TARGET_FILE:zinc>)
  add_test(NAME cli.smoke COMMAND ${PROJECT_SOURCE_DIR}/tools/smoke.py $<TARGET_FILE:zinc>)
  add_test(NAME cli.smoke_plain_kernels
    COMMAND ${PROJECT_SOURCE_DIR}/tools/smoke.py $<TARGET_FILE:zinc>)
  add_test(NAME cli.accelerate
    COMMAND bash ${CMAKE_CURRENT_LIST_DIR}/accelerate.sh $<TARGET_FILE:zinc> ${CMAKE_CURRENT_LIST_DIR}/../data)
  set_tests_properties(cli.accelerate PROPERTIES PROCESSORS 2 TIMEOUT 120)
  add_test(NAME cli.config_new COMMAND ${CMAKE_CURRENT_LIST_DIR}/config_new.py $<TARGET_FILE:zinc>
    ${CMAKE_CURRENT_LIST_DIR}/../data)
  set_tests_properties(cli.config_new PROPERTIES TIMEOUT 120)
  set_tests_properties(cli.smoke_plain_kernels PROPERTIES ENVIRONMENT ZINC_ISA=ref)
  set_tests_properties(cli.smoke cli.smoke_plain_kernels PROPERTIES PROCESSORS 2)
  set_tests_properties(cli.program cli.manual cli.smoke cli.smoke_plain_kernels PROPERTIES TIMEOUT 60)
endif()
add_test(NAME cli.checks COMMAND bash ${CMAKE_CURRENT_LIST_DIR}/checks.sh ${PROJECT_SOURCE_DIR})
set_tests_properties(cli.checks PROPERTIES TIMEOUT 60)
# Minutes, root and a network: run by `ctest -C slow -L slow` and `make package-test` only.
add_test(NAME cli.package CONFIGURATIONS slow COMMAND bash ${PROJECT_SOURCE_DIR}/tools/test_package.sh)
set_tests_properties(cli.package PROPERTIES LABELS slow TIMEOUT 1800 SKIP_RETURN_CODE 77)

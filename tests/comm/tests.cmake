# SPDX-License-Identifier: Apache-2.0
target_sources(test_contract PRIVATE ${CMAKE_CURRENT_LIST_DIR}/comm_contract.c)
target_include_directories(test_contract PRIVATE ${CMAKE_CURRENT_LIST_DIR})

# SPDX-License-Identifier: Apache-2.0
# The Python front-end, where the interpreter has torch; `make python-test` makes one that has.
find_package(Python3 REQUIRED COMPONENTS Interpreter)
if(NOT ZINC_SANITIZE)
  execute_process(COMMAND ${Python3_EXECUTABLE} -c
    "import importlib.util as u, sys; sys.exit(u.find_spec('torch') is None)"
    RESULT_VARIABLE zinc_no_torch OUTPUT_QUIET ERROR_QUIET)
  if(zinc_no_torch EQUAL 0)
    foreach(file zinc engine stage3 memory groups huggingface native scripts launch)
      add_test(NAME python.${file} COMMAND ${Python3_EXECUTABLE} -m unittest test_${file}
        WORKING_DIRECTORY ${PROJECT_SOURCE_DIR}/python/tests)
      set_tests_properties(python.${file} PROPERTIES TIMEOUT 900 PROCESSORS 2 ENVIRONMENT
        "ZINC_LIBRARY=$<TARGET_FILE:zinc_shared>;ZINC_PROGRAM=$<TARGET_FILE:zinc>;PYTHONPATH=${PROJECT_SOURCE_DIR}/python")
    endforeach()
  endif()
endif()

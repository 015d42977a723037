# SPDX-License-Identifier: Apache-2.0
# Manual pages and bash completion, written by the program itself: its tables are the only source.
# Run as a script: cmake -D ZINC=program -D OUT=folder -P manual.cmake, or included: the target that
# does so after each link, and what is installed.
if(CMAKE_SCRIPT_MODE_FILE)
  function(zn_write file)
    execute_process(COMMAND ${ZINC} help ${ARGN} OUTPUT_FILE ${OUT}/${file} COMMAND_ERROR_IS_FATAL ANY)
  endfunction()
  file(REMOVE_RECURSE ${OUT})
  file(MAKE_DIRECTORY ${OUT}/man/man1 ${OUT}/bash-completion/completions)
  execute_process(COMMAND ${ZINC} help --commands OUTPUT_VARIABLE names COMMAND_ERROR_IS_FATAL ANY)
  string(REGEX MATCHALL "[^\n]+" names "${names}")
  zn_write(man/man1/zinc.1 --man)
  foreach(name ${names})
    zn_write(man/man1/zinc-${name}.1 --man ${name})
  endforeach()
  zn_write(bash-completion/completions/zinc --completion bash)
elseif(TARGET zinc AND NOT ZINC_SANITIZE AND NOT ZINC_FUZZ)
  set(manual_folder ${PROJECT_BINARY_DIR}/share)
  add_custom_command(OUTPUT ${PROJECT_BINARY_DIR}/manual.stamp
    COMMAND ${CMAKE_COMMAND} -D ZINC=$<TARGET_FILE:zinc> -D OUT=${manual_folder}
            -P ${PROJECT_SOURCE_DIR}/cmake/manual.cmake
    COMMAND ${CMAKE_COMMAND} -E touch ${PROJECT_BINARY_DIR}/manual.stamp
    DEPENDS zinc ${PROJECT_SOURCE_DIR}/cmake/manual.cmake COMMENT "manual pages" VERBATIM)
  add_custom_target(manual ALL DEPENDS ${PROJECT_BINARY_DIR}/manual.stamp)
  install(DIRECTORY ${manual_folder}/ DESTINATION ${CMAKE_INSTALL_DATADIR})
endif()

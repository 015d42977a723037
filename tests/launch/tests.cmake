# SPDX-License-Identifier: Apache-2.0
# The launcher with real processes; over two hosts where namespaces and sshd are there, and in a Slurm cluster of its own where
# Slurm is (else 77).
find_package(Python3 COMPONENTS Interpreter REQUIRED)
if(TARGET zinc)
  function(zn_launch_test name)
    add_test(NAME launch.${name} COMMAND ${Python3_EXECUTABLE} ${CMAKE_SOURCE_DIR}/tests/launch/processes.py
             $<TARGET_FILE:zinc> ${CMAKE_SOURCE_DIR}/tests/data ${ARGN})
    set_tests_properties(launch.${name} PROPERTIES TIMEOUT 240 SKIP_RETURN_CODE 77 RUN_SERIAL TRUE) # they hold processes to seconds
  endfunction()
  zn_launch_test(words test_arguments_arrive_byte_for_byte test_the_environment_says_who_a_rank_is
                 test_python_programs_modules_and_scripts_to_read_first test_programs_that_cannot_run
                 test_the_plan_is_made_without_reaching_a_host
                 test_the_plan_shows_the_cores_of_each_rank test_cores_are_divided test_a_busy_port_is_refused_if_asked_for_and_avoided_if_not
                 test_no_program_of_the_system_is_needed_to_launch_here)
  zn_launch_test(ends test_the_first_failure_ends_all_and_gives_its_code test_a_rank_that_is_killed
                 test_a_rank_without_memory_ends_all_and_says_so
                 test_two_jobs_at_once_take_two_ports_and_do_not_touch_each_other
                 test_a_job_right_after_a_killed_one_gets_its_port
                 test_a_rank_that_does_not_hear_sigterm_is_killed test_an_agent_that_is_killed
                 test_an_agent_that_is_stopped_is_lost_within_seconds
                 test_a_launcher_that_is_killed_takes_all_with_it)
  zn_launch_test(signals test_a_signal_to_the_launcher_reaches_every_rank
                 test_a_second_signal_ends_at_once test_the_grace_period_ends)
  zn_launch_test(hangs test_a_stopped_rank_is_a_hang test_silence_is_a_hang_and_a_touched_file_is_none)
  zn_launch_test(hosts test_all_unfit_hosts_are_listed_and_nothing_starts
                 test_hosts_that_are_there_wait_for_one_that_is_late
                 test_zinc_env_compares_hosts test_ssh_gets_port_and_options_in_order test_min_nodes_goes_on_without_lost_hosts
                 test_no_ssh_starts_one_hosts_ranks_on_each)
  zn_launch_test(output test_each_rank_has_a_log test_much_output_arrives_whole
                 test_a_slow_reader_loses_no_host)
  zn_launch_test(restarts test_restarts_are_counted test_a_host_that_went_down_is_tried_again
                 test_zinc_train_is_one_process_on_a_host
                 test_a_run_of_zinc_train_that_is_killed_goes_on_from_its_checkpoint)
  zn_launch_test(runners test_a_runner_that_is_not_installed_is_named)
  foreach(runner openmpi mpich pdsh) # optional packages: each says what it lacks
    zn_launch_test(${runner} test_${runner}_starts_agents_that_connect_back)
  endforeach()
  add_test(NAME launch.two_hosts COMMAND bash ${CMAKE_CURRENT_LIST_DIR}/two_hosts.sh $<TARGET_FILE:zinc>
           ${CMAKE_SOURCE_DIR}/tests/data)
  set_tests_properties(launch.two_hosts PROPERTIES TIMEOUT 240 SKIP_RETURN_CODE 77 RUN_SERIAL TRUE)
  add_test(NAME launch.slurm CONFIGURATIONS slow COMMAND bash ${CMAKE_CURRENT_LIST_DIR}/slurm.sh $<TARGET_FILE:zinc> ${CMAKE_SOURCE_DIR}/tests/data)
  set_tests_properties(launch.slurm PROPERTIES LABELS slow TIMEOUT 240 SKIP_RETURN_CODE 77 RUN_SERIAL TRUE)
  if(ZINC_MPI)
    # All kinds of faults at random moments, six runs here and 36 (minutes) by `ctest -C slow -L slow`.
    set(fault_runs bash ${CMAKE_CURRENT_LIST_DIR}/two_hosts.sh $<TARGET_FILE:zinc> ${CMAKE_SOURCE_DIR}/tests/data
        ${Python3_EXECUTABLE} ${CMAKE_CURRENT_LIST_DIR}/fault_runs.py)
    add_test(NAME launch.faults COMMAND ${fault_runs} 6)
    set_tests_properties(launch.faults PROPERTIES TIMEOUT 300 SKIP_RETURN_CODE 77 RUN_SERIAL TRUE)
    add_test(NAME launch.hybrid COMMAND bash ${CMAKE_CURRENT_LIST_DIR}/two_hosts.sh $<TARGET_FILE:zinc> ${CMAKE_SOURCE_DIR}/tests/data
      ${Python3_EXECUTABLE} ${CMAKE_CURRENT_LIST_DIR}/hybrid_runs.py)
    set_tests_properties(launch.hybrid PROPERTIES TIMEOUT 240 SKIP_RETURN_CODE 77 RUN_SERIAL TRUE)
    add_test(NAME launch.by_hand COMMAND bash ${CMAKE_CURRENT_LIST_DIR}/two_hosts.sh $<TARGET_FILE:zinc> ${CMAKE_SOURCE_DIR}/tests/data
      bash ${CMAKE_CURRENT_LIST_DIR}/by_hand.sh)
    set_tests_properties(launch.by_hand PROPERTIES TIMEOUT 240 SKIP_RETURN_CODE 77 RUN_SERIAL TRUE)
    add_test(NAME launch.many_faults CONFIGURATIONS slow COMMAND ${fault_runs} 36)
    set_tests_properties(launch.many_faults PROPERTIES LABELS slow TIMEOUT 1800 SKIP_RETURN_CODE 77)
    zn_launch_test(mpi test_zinc_train_over_hosts_is_mpirun_and_gives_the_same_losses)
  endif()
endif()

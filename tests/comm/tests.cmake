# SPDX-License-Identifier: Apache-2.0
foreach(program test_comm_contract test_comm_contract_mpi test_comm_host)
  target_sources(${program} PRIVATE ${CMAKE_CURRENT_LIST_DIR}/comm_contract.c)
  target_include_directories(${program} PRIVATE ${CMAKE_CURRENT_LIST_DIR})
endforeach()

# Shared memory only, no binding to cores, more ranks than cores, and root as in a container.
set(mpi_env OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
    OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_btl=self,vader OMPI_MCA_pml=ob1
    OMPI_MCA_hwloc_base_binding_policy=none)
set_tests_properties(comm.comm_contract_mpi PROPERTIES ENVIRONMENT "${mpi_env}")
if(ZINC_MPI AND NOT ZINC_SANITIZE)
  foreach(n 1 2 3)
    add_test(NAME comm.comm_contract_mpi_${n}
      COMMAND ${MPIEXEC_EXECUTABLE} ${MPIEXEC_NUMPROC_FLAG} ${n} $<TARGET_FILE:test_comm_contract_mpi>)
    set_tests_properties(comm.comm_contract_mpi_${n} PROPERTIES ENVIRONMENT "${mpi_env}" PROCESSORS ${n}
      TIMEOUT 120)
  endforeach()
endif()

# SPDX-License-Identifier: Apache-2.0
# Instruction sets of the kernel files: src/kernels/simd/*.c is written once over vec.h and compiled
# for AVX2 and for AVX-512; src/kernels/ref/ is plain C for the baseline.
if(ZINC_OPENMP)
  target_link_libraries(zn_kernels PUBLIC OpenMP::OpenMP_C)
endif()
if(ZINC_DNNL)
  find_path(DNNL_INCLUDE oneapi/dnnl/dnnl.h REQUIRED)
  find_library(DNNL_LIBRARY dnnl REQUIRED)
  target_compile_definitions(zn_kernels PRIVATE ZINC_HAVE_DNNL)
  target_link_libraries(zn_kernels PUBLIC ${DNNL_LIBRARY})
endif()

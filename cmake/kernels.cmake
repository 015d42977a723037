# SPDX-License-Identifier: Apache-2.0
# Instruction sets of the kernel files: src/kernels/simd/*.inc is written once over vec.h and compiled
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

set(kernels_dir ${PROJECT_SOURCE_DIR}/src/kernels)
set(simd_sources ${kernels_dir}/avx2/avx2_table.c ${kernels_dir}/avx512/avx512_table.c)
if(ZINC_SIMD AND CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$")
  target_compile_definitions(zn_kernels PRIVATE ZINC_HAVE_SIMD)
  file(GLOB simd_includes CONFIGURE_DEPENDS ${kernels_dir}/simd/*)
  set_source_files_properties(${kernels_dir}/avx2/avx2_table.c PROPERTIES
    OBJECT_DEPENDS "${simd_includes}" COMPILE_OPTIONS "-O3;-mavx2;-mfma;-mf16c")
  set_source_files_properties(${kernels_dir}/avx512/avx512_table.c PROPERTIES
    OBJECT_DEPENDS "${simd_includes}" COMPILE_OPTIONS
    "-O3;-mavx512f;-mavx512bw;-mavx512dq;-mavx512vl;-mfma;-mf16c;-mprefer-vector-width=512")
  set_source_files_properties(${kernels_dir}/bf16/gemm_bf16.c PROPERTIES COMPILE_OPTIONS
    "-O3;-mavx512f;-mavx512bw;-mavx512dq;-mavx512vl;-mavx512bf16;-mfma;-mprefer-vector-width=512")
else()
  set_source_files_properties(${simd_sources} PROPERTIES HEADER_FILE_ONLY ON)
endif()

option(ZINC_BENCH "build the benchmarks" OFF)
if(ZINC_BENCH)
  add_executable(bench_kernels ${PROJECT_SOURCE_DIR}/bench/bench_kernels.c)
  target_link_libraries(bench_kernels PRIVATE zn_kernels)
  add_executable(bench_checkpoint ${PROJECT_SOURCE_DIR}/bench/bench_checkpoint.c)
  target_link_libraries(bench_checkpoint PRIVATE zn_ckpt)
endif()

# SPDX-License-Identifier: Apache-2.0
# The sum over ranks (src/comm/reduce_loops.inc) is written once and vectorised by the compiler for
# the baseline, for AVX2 and for AVX-512; -O3 because -O2 of GCC 12 vectorises only the simplest loops.
# AVX-512 instructions on 256-bit registers: on buffers larger than the caches the 512-bit widening of
# bf16 took 4 to 6 times as long, and on small ones it saved a fifth.
set(comm_dir ${PROJECT_SOURCE_DIR}/src/comm)
set_source_files_properties(${comm_dir}/reduce.c PROPERTIES COMPILE_OPTIONS "-O3")
if(ZINC_SIMD AND CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  target_compile_definitions(zn_comm PUBLIC ZINC_COMM_SIMD)
  set_source_files_properties(${comm_dir}/reduce_avx2.c PROPERTIES COMPILE_OPTIONS
    "-O3;-mavx2;-mf16c")
  set_source_files_properties(${comm_dir}/reduce_avx512.c PROPERTIES COMPILE_OPTIONS
    "-O3;-mavx2;-mf16c;-mavx512f;-mavx512bw;-mavx512dq;-mavx512vl;-mprefer-vector-width=256")
endif()

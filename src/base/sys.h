/* SPDX-License-Identifier: Apache-2.0 */
/* sys.h — what this machine is: cores, memory, vector instructions, clocks. Layer: base. */
#ifndef ZN_BASE_SYS_H
#define ZN_BASE_SYS_H

#include <stdbool.h>
#include <stdint.h>
#include <time.h>

typedef enum zn_isa {
    ZN_ISA_REF,         /* plain C */
    ZN_ISA_AVX2,        /* AVX2 + FMA + F16C */
    ZN_ISA_AVX512,      /* AVX-512 F, BW, DQ, VL */
    ZN_ISA_AVX512_BF16, /* and bf16 dot products */
    ZN_ISA_AMX,         /* and tiles of bf16 */
} zn_isa;

/** The best instruction set of this CPU, lowered by ZINC_ISA (a name of zn_isa_name; a wish above
 *  what the CPU has is ignored). */
zn_isa zn_sys_isa(void);
const char *zn_isa_name(zn_isa isa);

/** An environment variable, or NULL; `zinc env` lists those that are read. Borrowed. */
const char *zn_sys_env(const char *name);

/** Cores this process may run on (affinity mask, cgroup quota rounded up); at least 1. */
int zn_sys_cores(void);

/** Bytes of memory this process may use: the smaller of physical memory and the cgroup limit. */
int64_t zn_sys_memory_bytes(void);

/** Resident set of this process now, and its peak (VmRSS, VmHWM), in bytes; 0 if unknown. */
int64_t zn_sys_rss_bytes(void);
int64_t zn_sys_rss_peak_bytes(void);

/** Monotonic seconds. */
double zn_sys_now(void);

/** The moment timeout_ms from now (at least 0) on the monotonic clock, for pthread's timed waits.
 */
struct timespec zn_sys_deadline(int64_t timeout_ms);

/** Sleep; EINTR ends it early. */
void zn_sys_sleep(double seconds);

#endif

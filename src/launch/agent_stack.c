/* SPDX-License-Identifier: Apache-2.0 */
/* agent_stack.c — where a rank that hangs is: its stack, as gdb prints it, if gdb is on this host.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* memfd_create */
#endif
#include "launch/agent_internal.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "launch/spawn.h"

#define MAX_STACK_BYTES (64 << 10)

static zinc_status reply(zn_agent *agent, const zn_agent_rank *r, const char *text, size_t n)
{
    return zn_wire_send(&agent->wire, ZN_FRAME_STACK, 0, r->process->rank, text, n);
}

static zinc_status start_gdb(zn_agent_rank *r, int *exec_errno)
{
    zinc_status status;
    zn_words argv = {0};
    static const char *const words[] = {"gdb", "-nx", "-batch", "-ex", "thread apply all bt 16",
                                        "-p"};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        ZN_TRY_GOTO(zn_words_add(&argv, words[i]));
    ZN_TRY_GOTO(zn_words_addf(&argv, "%ld", (long)r->pid));
    r->stack_fd = memfd_create("stack", MFD_CLOEXEC);
    if (r->stack_fd < 0)
        ZN_FAIL_GOTO(ZINC_E_IO, "cannot make a memory file: %s", strerror(errno));
    const zn_spawn_params params = {.argv = &argv,
                                    .in = -1,
                                    .out = r->stack_fd,
                                    .err = r->stack_fd,
                                    .keep = -1,
                                    .death_signal = SIGKILL};
    ZN_TRY_GOTO(zn_spawn(&params, &r->stack_pid, exec_errno));
fail:
    zn_words_fini(&argv);
    return status;
}

zinc_status zn_agent_stack_begin(zn_agent *agent, int rank)
{
    for (int i = 0; agent->ranks && i < agent->job.n_processes; i++) {
        zn_agent_rank *r = &agent->ranks[i];
        int exec_errno = 0;
        if (r->process->rank != rank || r->pid <= 0 || r->stack_fd >= 0)
            continue;
        ZN_TRY(start_gdb(r, &exec_errno));
        return exec_errno ? reply(agent, r, "", 0) : ZINC_OK; /* most hosts have no gdb */
    }
    return ZINC_OK;
}

zinc_status zn_agent_stack_end(zn_agent *agent, zn_agent_rank *r)
{
    zinc_status status;
    char *text = NULL;
    r->stack_pid = 0;
    ZN_TRY(zn_alloc(&text, MAX_STACK_BYTES, "a stack"));
    const ssize_t n = pread(r->stack_fd, text, MAX_STACK_BYTES, 0);
    status = reply(agent, r, text, n > 0 ? (size_t)n : 0);
    zn_free(text);
    return status;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* agent_guard.c — an agent that is stopped (SIGSTOP) can end nothing, and where the launcher is on
 * another host nobody else can. A child looks at it every second and kills it after PATIENCE_S;
 * its ranks die with it. */
#include "launch/agent_internal.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "base/sys.h"

#define MAX_FD 256
#define PATIENCE_S (ZN_SILENCE_S + 2) /* the launcher comes first and says why */

/* Suspended together with the agent and resumed, it counts anew as soon as the agent runs. */
static void watch(pid_t agent)
{
    for (double stopped_s = 0; stopped_s < PATIENCE_S; stopped_s += 1) {
        zn_sys_sleep(1);
        if (!zn_process_is_stopped(agent))
            stopped_s = -1;
    }
    kill(agent, SIGKILL);
}

zinc_status zn_agent_guard_start(void)
{
    sigset_t none;
    const pid_t agent = getpid(), child = fork();
    if (child < 0)
        ZN_FAIL(ZINC_E_IO, "the agent cannot start a process: %s", strerror(errno));
    if (child > 0)
        return ZINC_OK;
    setpgid(0, 0); /* a signal to the agent's group is not meant for it */
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != agent)
        raise(SIGKILL);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    for (int fd = 0; fd < MAX_FD; fd++) /* the wire ends when the agent does */
        close(fd);
    watch(agent);
    raise(SIGKILL);
    return ZINC_OK;
}

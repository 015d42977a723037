/* SPDX-License-Identifier: Apache-2.0 */
/* stop.c — the first SIGINT, SIGTERM or SIGUSR1 asks the loop to stop after its step; a second
 * ends now. Schedulers send SIGUSR1 before they take a machine away, to every process of a job, and
 * mpirun or a launcher passes on what it gets: the same signal within a moment is the same one. */
#include <signal.h>
#include <time.h>
#include <unistd.h>

#include "train/train_internal.h"

/* A signal handler can reach nothing but a static: the one the process has. */
static volatile sig_atomic_t first_signal, first_ms;

#define ECHO_MS 500

/* Milliseconds modulo a day, to fit; clock_gettime may be called by a handler. */
static int now_ms(void)
{
    struct timespec now = {0};
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int)(now.tv_sec % 86400 * 1000 + now.tv_nsec / 1000000);
}

static void on_signal(int number)
{
    const int ms = now_ms();
    if (!first_signal)
        first_ms = ms;
    else if (number != first_signal || ms < first_ms || ms - first_ms > ECHO_MS)
        _exit(128 + number);
    else
        return;
    first_signal = number;
}

void zn_train_catch_signals(void)
{
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGUSR1, &action, NULL);
}

int zn_train_signal(void)
{
    return (int)first_signal;
}

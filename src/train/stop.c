/* SPDX-License-Identifier: Apache-2.0 */
/* stop.c — the first SIGINT, SIGTERM or SIGUSR1 asks the loop to stop after its step; a second
 * ends now. Schedulers send SIGUSR1 before they take a machine away. */
#include <signal.h>
#include <unistd.h>

#include "train/train_internal.h"

/* A signal handler can reach nothing but a static: the one the process has. */
static volatile sig_atomic_t first_signal;

static void on_signal(int number)
{
    if (first_signal)
        _exit(128 + number);
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

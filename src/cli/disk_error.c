/* SPDX-License-Identifier: Apache-2.0 */
/* disk_error.c — all that the handler does may be done in a handler. */
#include "cli/disk_error.h"

#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#define EXIT_IO 4

static void say(const char *text)
{
    const ssize_t n = write(STDERR_FILENO, text, strlen(text));
    (void)n; /* there is nobody else to tell */
}

static const char *read_hex(const char *p, uintptr_t *out)
{
    *out = 0;
    for (; (*p >= '0' && *p <= '9') || (*p >= 'a' && *p <= 'f'); p++)
        *out = 16 * *out + (uintptr_t)(*p <= '9' ? *p - '0' : *p - 'a' + 10);
    return p;
}

/* Whether `line` of /proc/self/maps, "BEGIN-END … PATH", has the address; *path is its path, or "".
 */
static bool covers(const char *line, uintptr_t address, const char **path)
{
    uintptr_t begin, end;
    const char *p = read_hex(line, &begin);
    (void)read_hex(*p ? p + 1 : p, &end);
    const char *slash = strchr(line, '/');
    *path = slash ? slash : "";
    return begin <= address && address < end;
}

/* The file that is mapped at `address` into path [n]; "" if none is found. */
static void find_file(uintptr_t address, char *path, size_t n)
{
    char line[PATH_MAX + 128], c;
    size_t used = 0;
    const int fd = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
    path[0] = '\0';
    while (fd >= 0 && read(fd, &c, 1) == 1) {
        const char *found;
        if (c != '\n') {
            line[used] = c;
            used += used < sizeof line - 1;
            continue;
        }
        line[used] = '\0';
        used = 0;
        if (covers(line, address, &found)) {
            strncpy(path, found, n - 1);
            path[n - 1] = '\0';
            break;
        }
    }
    if (fd >= 0)
        close(fd);
}

static void on_bus_error(int number, siginfo_t *info, void *context)
{
    char path[PATH_MAX];
    (void)number;
    (void)context;
    find_file((uintptr_t)info->si_addr, path, sizeof path);
    say("zinc: error: cannot read ");
    say(path[0] ? path : "memory");
    say(path[0] ? ": its disk fails, or the file was cut while it was in use\n" : ": SIGBUS\n");
    _exit(EXIT_IO);
}

void zn_cli_catch_disk_errors(void)
{
    struct sigaction action = {.sa_sigaction = on_bus_error, .sa_flags = SA_SIGINFO};
    sigemptyset(&action.sa_mask);
    (void)sigaction(SIGBUS, &action, NULL); /* fails for no signal there is */
}

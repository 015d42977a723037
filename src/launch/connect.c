/* SPDX-License-Identifier: Apache-2.0 */
/* connect.c — reach a host and port within a time limit. A plain connect() waits minutes for an
 * address that nobody answers for, and a name can have several addresses of which one works. */
#include "launch/launch_internal.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/sys.h"

/* 0, or why there is no connection. The socket blocks again afterwards. */
static int connect_until(const struct addrinfo *a, double until, int *out)
{
    const int fd = socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    int error = 0;
    socklen_t size = sizeof error;
    if (fd < 0)
        return errno;
    if (connect(fd, a->ai_addr, a->ai_addrlen) != 0)
        error = errno;
    if (error == EINPROGRESS) {
        struct pollfd out_fd = {.fd = fd, .events = POLLOUT};
        const double left = until - zn_sys_now();
        const int n = poll(&out_fd, 1, left > 0 ? (int)(left * 1e3) + 1 : 0);
        error = n == 0 ? ETIMEDOUT : n < 0 ? errno : 0;
        if (n > 0 && getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) != 0)
            error = errno;
    }
    if (error == 0 && fcntl(fd, F_SETFL, 0) != 0)
        error = errno;
    if (error)
        close(fd);
    else
        *out = fd;
    return error;
}

static zinc_status add_reason(zn_buf *tried, const struct addrinfo *a, int error)
{
    char name[NI_MAXHOST] = "?";
    (void)getnameinfo(a->ai_addr, a->ai_addrlen, name, sizeof name, NULL, 0, NI_NUMERICHOST);
    return zn_buf_printf(tried, "%s%s: %s", tried->n ? ", " : "", name,
                         error == ETIMEDOUT ? "no answer" : strerror(error));
}

zinc_status zn_connect(const char *host, int port, double seconds, int *out)
{
    zinc_status status = ZINC_OK;
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
    const double until = zn_sys_now() + seconds;
    struct addrinfo *found = NULL;
    zn_buf tried = {0};
    char service[16];
    int n_left = 0, error = -1;
    snprintf(service, sizeof service, "%d", port);
    const int code = getaddrinfo(host, service, &hints, &found);
    if (code != 0)
        ZN_FAIL(ZINC_E_COMM, "%s: %s", host, gai_strerror(code));
    for (const struct addrinfo *a = found; a; a = a->ai_next)
        n_left++;
    for (const struct addrinfo *a = found; a && error != 0; a = a->ai_next, n_left--) {
        const double now = zn_sys_now();
        error = connect_until(a, now + (until - now) / n_left, out);
        if (error)
            ZN_TRY_GOTO(add_reason(&tried, a, error));
    }
    if (error)
        ZN_FAIL_GOTO(ZINC_E_COMM, "%s", tried.data);
fail:
    freeaddrinfo(found);
    zn_buf_fini(&tried);
    return status;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* by_hand.c — `zinc train` over machines on each of which a person starts the same command
 * (machine_rank 0, 1, … of an accelerate YAML). Machine 0 waits for the others at its address and
 * port, then runs mpirun, whose remote shell is `zinc agent HOST COMMAND`: it hands the command
 * that a machine is to run to machine 0, which passes it on to the one that waits there. So no ssh
 * is needed, and a machine that does not come is named.
 *
 *   machine k ---- "zinc-hand 1 k n slots\n" ----> machine 0
 *   relay ---- host, NUL, command, NUL ----> machine 0 ---- size, command ----> machine k: sh -c
 *   relay <---- exit code ---- machine 0 <---- exit code ---- machine k
 *
 * Whoever reaches the port is taken for a partner, as with torchrun; keep it inside your network.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* accept4 */
#endif
#include "launch/launch_internal.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/log.h"
#include "base/sys.h"
#include "launch/spawn.h"

#define MAX_COMMAND (1 << 20)
#define HELLO "zinc-hand 1"
#define RELAY_NAME "ZINC_RELAY"
#define TELL_S 10.0 /* between two lines that say who is waited for */
#define GRACE_S 5.0

extern char **environ;

typedef struct partner {
    int fd;    /* -1: not there */
    int relay; /* who waits for its exit code; -1: nobody */
    char address[64];
} partner;

typedef struct hand {
    const zn_launch_options *o;
    int n, port;
    partner *partners; /* [n]; 0 is this machine */
    int listen_fd, relay_fd;
    char relay[64]; /* name of the abstract socket */
    pid_t mpirun;
    int n_signals;
} hand;

static volatile sig_atomic_t last_signal;

static void on_signal(int number)
{
    last_signal = number;
}

/* ---- bytes ---- */

static bool send_all(int fd, const void *data, size_t n)
{
    for (size_t done = 0; done < n;) {
        const ssize_t sent = send(fd, (const char *)data + done, n - done, MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR)
            continue;
        if (sent <= 0)
            return false;
        done += (size_t)sent;
    }
    return true;
}

static bool recv_all(int fd, void *data, size_t n)
{
    for (size_t done = 0; done < n;) {
        const ssize_t got = recv(fd, (char *)data + done, n - done, 0);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return false;
        done += (size_t)got;
    }
    return true;
}

/* A line of at most n - 1 bytes, without its end. */
static bool recv_line(int fd, char *line, size_t n)
{
    size_t i = 0;
    for (; i + 1 < n && recv_all(fd, &line[i], 1) && line[i] != '\n'; i++) {
    }
    const bool good = i + 1 < n && line[i] == '\n';
    line[i] = '\0';
    return good;
}

/* ---- the others come ---- */

static zinc_status listen_at(hand *h)
{
    const int one = 1;
    const struct sockaddr_in address = {.sin_family = AF_INET,
                                        .sin_port = htons((uint16_t)h->port)};
    h->listen_fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    setsockopt(h->listen_fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(h->listen_fd, (const struct sockaddr *)&address, sizeof address) != 0 ||
        listen(h->listen_fd, 64) != 0)
        ZN_FAIL(ZINC_E_CONFIG, "cannot wait for the other machines at port %d: %s", h->port,
                strerror(errno));
    return ZINC_OK;
}

static zinc_status seat(hand *h, int fd, const struct sockaddr_in *from)
{
    char line[100];
    const struct timeval wait = {.tv_sec = 5};
    int rank = -1, n = 0;
    long long slots = 0;
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof wait);
    if (!recv_line(fd, line, sizeof line) ||
        sscanf(line, HELLO " %d %d %lld", &rank, &n, &slots) != 3) {
        close(fd); /* somebody else */
        return ZINC_OK;
    }
    const bool fits = rank > 0 && rank < h->n && n == h->n && slots == h->o->num_ranks;
    if (!fits || h->partners[rank].fd >= 0) {
        close(fd);
        ZN_FAIL(ZINC_E_CONFIG,
                "a machine says it is %d of %d with %lld ranks, and here are %d machines with %lld "
                "ranks each: make num_machines and num_processes equal, and machine_rank different",
                rank, n, slots, h->n, (long long)h->o->num_ranks);
    }
    const struct timeval forever = {0};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &forever, sizeof forever);
    h->partners[rank].fd = fd;
    inet_ntop(AF_INET, &from->sin_addr, h->partners[rank].address,
              sizeof h->partners[rank].address);
    zn_info("launch", "machine %d of %d is here: %s", rank, h->n, h->partners[rank].address);
    return ZINC_OK;
}

/* "1, 3" */
static void name_missing(const hand *h, char *out, size_t n)
{
    size_t used = 0;
    out[0] = '\0';
    for (int i = 1; i < h->n && used + 16 < n; i++)
        if (h->partners[i].fd < 0)
            used += (size_t)snprintf(out + used, n - used, "%s%d", used ? ", " : "", i);
}

static zinc_status wait_for_all(hand *h)
{
    const double began = zn_sys_now(), until = began + h->o->connect_timeout_s;
    double told = began - TELL_S;
    char missing[200];
    for (;;) {
        name_missing(h, missing, sizeof missing);
        if (!*missing)
            return ZINC_OK;
        const double now = zn_sys_now();
        if (now > until)
            ZN_FAIL(ZINC_E_COMM,
                    "machine %s of %d did not come within %g s (--connect_timeout); on each the "
                    "same command runs with its own machine_rank (--node_rank), and reaches %s:%d",
                    missing, h->n, h->o->connect_timeout_s, h->o->master_addr, h->port);
        if (last_signal)
            ZN_FAIL(ZINC_E_ABORTED, "stopped while waiting for machine %s", missing);
        if (now - told >= TELL_S) {
            zn_info("launch", "waiting for machine %s of %d at %s:%d", missing, h->n,
                    h->o->master_addr, h->port);
            told = now;
        }
        struct pollfd fd = {.fd = h->listen_fd, .events = POLLIN};
        if (poll(&fd, 1, 200) <= 0)
            continue;
        struct sockaddr_in from;
        socklen_t size = sizeof from;
        const int one = accept4(h->listen_fd, (struct sockaddr *)&from, &size, SOCK_CLOEXEC);
        if (one >= 0)
            ZN_TRY(seat(h, one, &from));
    }
}

/* ---- mpirun ---- */

static zinc_status listen_for_relays(hand *h)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(h->relay, sizeof h->relay, "zinc-relay-%ld", (long)getpid());
    snprintf(address.sun_path + 1, sizeof address.sun_path - 1, "%s", h->relay);
    const socklen_t size =
        (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + strlen(h->relay));
    h->relay_fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (bind(h->relay_fd, (const struct sockaddr *)&address, size) != 0 ||
        listen(h->relay_fd, 64) != 0)
        ZN_FAIL(ZINC_E_IO, "cannot make the relay's socket: %s", strerror(errno));
    return ZINC_OK;
}

static zinc_status make_plan(hand *h, zn_plan *plan)
{
    char path[4096];
    const ssize_t n = readlink("/proc/self/exe", path, sizeof path - 1);
    if (n < 0)
        ZN_FAIL(ZINC_E_IO, "cannot find the zinc program: %s", strerror(errno));
    path[n] = '\0';
    ZN_TRY(zn_strdup(path, &plan->self));
    for (int i = 0; i < h->n; i++) {
        const char *name = i == 0 ? h->o->master_addr : h->partners[i].address;
        ZN_TRY(zn_pool_add(&plan->pool, name, strlen(name), (int)h->o->num_ranks, NULL));
    }
    plan->world = zn_pool_n_slots(&plan->pool);
    return ZINC_OK;
}

static zinc_status start_mpirun(hand *h, const zn_plan *plan)
{
    zinc_status status;
    const zn_process *p = &plan->processes[0];
    zn_words env = {0};
    int error = 0;
    char agent[4300], name[100];
    const int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
    for (char **e = environ; e && *e; e++)
        ZN_TRY_GOTO(zn_words_add(&env, *e));
    for (int i = 0; i < p->env.n; i++)
        ZN_TRY_GOTO(zn_words_set(&env, p->env.items[i]));
    snprintf(agent, sizeof agent, "OMPI_MCA_plm_rsh_agent=%s agent", plan->self);
    snprintf(name, sizeof name, RELAY_NAME "=%s", h->relay);
    ZN_TRY_GOTO(zn_words_set(&env, agent));
    ZN_TRY_GOTO(zn_words_set(&env, name));
    ZN_TRY_GOTO(zn_words_set(&env, "OMPI_MCA_orte_leave_session_attached=1"));
    const zn_spawn_params params = {.argv = &p->argv,
                                    .env = &env,
                                    .in = null,
                                    .out = -1,
                                    .err = -1,
                                    .keep = -1,
                                    .death_signal = SIGTERM};
    ZN_TRY_GOTO(zn_spawn(&params, &h->mpirun, &error));
    if (error)
        ZN_FAIL_GOTO(ZINC_E_CONFIG, "cannot run mpirun: %s; install Open MPI (openmpi-bin)",
                     strerror(error));
fail:
    if (null >= 0)
        close(null);
    zn_words_fini(&env);
    return status;
}

/* ---- while it runs ---- */

/* A relay's host and command; passed on to that machine. */
static void take_relay(hand *h)
{
    const int fd = accept4(h->relay_fd, NULL, NULL, SOCK_CLOEXEC);
    uint32_t size = 0;
    char host[64] = "", *command = NULL;
    bool good = fd >= 0 && recv_all(fd, host, sizeof host) && recv_all(fd, &size, sizeof size) &&
                size > 0 && size <= MAX_COMMAND &&
                zn_alloc(&command, size, "a command") == ZINC_OK && recv_all(fd, command, size);
    host[sizeof host - 1] = '\0';
    partner *to = NULL;
    for (int i = 1; i < h->n && good; i++)
        if (strcmp(h->partners[i].address, host) == 0 && h->partners[i].relay < 0)
            to = &h->partners[i];
    good = good && to && send_all(to->fd, &size, sizeof size) && send_all(to->fd, command, size);
    if (good)
        to->relay = fd;
    else if (fd >= 0)
        close(fd);
    zn_free(command);
}

/* A machine's command has ended, or the machine is gone. */
static bool take_exit(partner *p)
{
    int32_t code;
    if (!recv_all(p->fd, &code, sizeof code))
        return false;
    if (p->relay >= 0 && !send_all(p->relay, &code, sizeof code))
        zn_debug("launch", "the relay is gone");
    if (p->relay >= 0)
        close(p->relay);
    p->relay = -1;
    return true;
}

static void pass_signal(hand *h)
{
    const bool first = h->n_signals++ == 0;
    last_signal = 0;
    kill(h->mpirun, first ? SIGUSR1 : SIGTERM); /* zinc train ends after its step at SIGUSR1 */
}

/* Returns the machine that was lost, or -1 when mpirun has ended by itself. */
static int watch(hand *h, int *how)
{
    struct pollfd fds[66];
    for (;;) {
        if (waitpid(h->mpirun, how, WNOHANG) == h->mpirun)
            return -1;
        if (last_signal)
            pass_signal(h);
        fds[0] = (struct pollfd){.fd = h->relay_fd, .events = POLLIN};
        for (int i = 1; i < h->n; i++)
            fds[i] = (struct pollfd){.fd = h->partners[i].fd, .events = POLLIN};
        if (poll(fds, (nfds_t)h->n, 100) <= 0)
            continue;
        if (fds[0].revents)
            take_relay(h);
        for (int i = 1; i < h->n; i++)
            if (fds[i].revents && !take_exit(&h->partners[i]))
                return i;
    }
}

static int end_mpirun(hand *h)
{
    int how = 0;
    const double until = zn_sys_now() + GRACE_S;
    kill(h->mpirun, SIGTERM);
    while (waitpid(h->mpirun, &how, WNOHANG) == 0) {
        if (zn_sys_now() > until)
            kill(h->mpirun, SIGKILL);
        zn_sys_sleep(0.05);
    }
    return how;
}

static zinc_status run_machine_0(hand *h, int *exit_code)
{
    zinc_status status;
    zn_plan plan = {.native = true, .by_hand_rank = 0};
    zn_words env = {0};
    zn_launch_options o = *h->o;
    int how = 0;
    o.no_ssh = false;
    o.launcher = NULL;
    ZN_TRY_GOTO(listen_at(h));
    ZN_TRY_GOTO(wait_for_all(h));
    ZN_TRY_GOTO(listen_for_relays(h));
    ZN_TRY_GOTO(make_plan(h, &plan));
    ZN_TRY_GOTO(zn_env_collect(o.exports, o.n_exports, &env));
    ZN_TRY_GOTO(zn_native_processes(&o, &plan, &env));
    ZN_TRY_GOTO(start_mpirun(h, &plan));
    const int lost = watch(h, &how);
    if (lost >= 0) {
        end_mpirun(h);
        zn_log(ZN_LOG_ERROR, "launch", "machine %d (%s) is gone; the job has ended", lost,
               h->partners[lost].address);
    }
    *exit_code = lost >= 0        ? ZN_EXIT_LOST_HOST
                 : WIFEXITED(how) ? WEXITSTATUS(how)
                                  : 128 + WTERMSIG(how);
    for (int i = 1; i < h->n; i++) { /* size 0: the end, and how */
        const uint32_t end[2] = {0, (uint32_t)*exit_code};
        zn_ignore(send_all(h->partners[i].fd, end, sizeof end) ? ZINC_OK : ZINC_E_COMM);
    }
fail:
    zn_words_fini(&env);
    for (int i = 0; i < plan.n_processes; i++) {
        zn_words_fini(&plan.processes[i].env);
        zn_words_fini(&plan.processes[i].argv);
    }
    zn_free(plan.processes);
    zn_pool_fini(&plan.pool);
    zn_free(plan.self);
    return status;
}

/* ---- machine 1 and on ---- */

static zinc_status reach_machine_0(const hand *h, int *out)
{
    const zn_launch_options *o = h->o;
    const double until = zn_sys_now() + o->connect_timeout_s;
    char hello[100];
    zn_info("launch", "waiting for machine 0 at %s:%d", o->master_addr, h->port);
    while (zn_connect(o->master_addr, h->port, until - zn_sys_now(), out) != ZINC_OK) {
        if (last_signal)
            ZN_FAIL(ZINC_E_ABORTED, "stopped while waiting for machine 0");
        if (zn_sys_now() > until) {
            zn_error_prefix("machine 0 did not answer at %s:%d within %g s (--connect_timeout): ",
                            o->master_addr, h->port, o->connect_timeout_s);
            return ZINC_E_COMM;
        }
        zn_sys_sleep(0.2);
    }
    const int n = snprintf(hello, sizeof hello, HELLO " %lld %d %lld\n", (long long)o->node_rank,
                           h->n, (long long)o->num_ranks);
    if (!send_all(*out, hello, (size_t)n))
        ZN_FAIL(ZINC_E_COMM, "machine 0 has closed the connection");
    return ZINC_OK;
}

static zinc_status start_command(int fd, uint32_t size, pid_t *pid)
{
    zinc_status status;
    zn_words argv = {0};
    char *command = NULL;
    int error = 0;
    if (size > MAX_COMMAND)
        ZN_FAIL(ZINC_E_FORMAT, "what answers at machine 0's address and port is no zinc launch; is "
                               "the port right?");
    ZN_TRY(zn_alloc(&command, (size_t)size + 1, "a command"));
    if (!recv_all(fd, command, size))
        ZN_FAIL_GOTO(ZINC_E_COMM, "machine 0 is gone");
    ZN_TRY_GOTO(zn_words_add(&argv, "/bin/sh"));
    ZN_TRY_GOTO(zn_words_add(&argv, "-c"));
    ZN_TRY_GOTO(zn_words_add(&argv, command));
    const zn_spawn_params params = {
        .argv = &argv, .in = -1, .out = -1, .err = -1, .keep = -1, .death_signal = SIGTERM};
    ZN_TRY_GOTO(zn_spawn(&params, pid, &error));
    if (error)
        ZN_FAIL_GOTO(ZINC_E_IO, "cannot run sh: %s", strerror(error));
fail:
    zn_words_fini(&argv);
    zn_free(command);
    return status;
}

/* Run what machine 0 sends until it says that the job has ended; *code is how. */
static zinc_status serve_machine_0(int fd, int *code)
{
    pid_t pid = 0;
    for (;;) {
        struct pollfd in = {.fd = fd, .events = POLLIN};
        int how;
        if (pid > 0 && waitpid(pid, &how, WNOHANG) == pid) {
            const int32_t ended = WIFEXITED(how) ? WEXITSTATUS(how) : 128 + WTERMSIG(how);
            pid = 0;
            if (!send_all(fd, &ended, sizeof ended))
                ZN_FAIL(ZINC_E_COMM, "machine 0 is gone");
        }
        if (last_signal) { /* it ends here; machine 0 sees that and ends the rest */
            if (pid > 0)
                kill(-pid, SIGTERM);
            *code = 128 + (int)last_signal;
            return ZINC_OK;
        }
        if (poll(&in, 1, 100) <= 0)
            continue;
        uint32_t size = 0, end = 0;
        const bool got = recv_all(fd, &size, sizeof size);
        if (got && size > 0) {
            ZN_TRY(start_command(fd, size, &pid));
            continue;
        }
        if (pid > 0)
            kill(-pid, SIGTERM);
        if (!got || !recv_all(fd, &end, sizeof end))
            ZN_FAIL(ZINC_E_COMM, "machine 0 is gone; its ranks here are ended");
        *code = (int)end;
        return ZINC_OK;
    }
}

/* ---- both ---- */

zinc_status zn_launch_by_hand(const zn_launch_options *o, int *exit_code)
{
    zinc_status status;
    hand h = {.o = o, .n = (int)o->num_nodes, .listen_fd = -1, .relay_fd = -1};
    const struct sigaction act = {.sa_handler = on_signal};
    int fd = -1;
    h.port = o->master_port > 0 ? (int)o->master_port : ZN_DEFAULT_MASTER_PORT;
    if (h.n > 64)
        ZN_FAIL(ZINC_E_UNSUPPORTED, "%d machines by hand are too many (64): use a hostfile", h.n);
    if (!o->master_addr)
        ZN_FAIL(ZINC_E_INVALID, "main_process_ip is needed: where machine 0 waits");
    ZN_TRY(zn_alloc_array(&h.partners, (size_t)h.n, sizeof *h.partners, "machines"));
    for (int i = 0; i < h.n; i++)
        h.partners[i].fd = h.partners[i].relay = -1;
    sigaction(SIGINT, &act, NULL);
    sigaction(SIGTERM, &act, NULL);
    if (o->node_rank == 0) {
        ZN_TRY_GOTO(run_machine_0(&h, exit_code));
    } else {
        ZN_TRY_GOTO(reach_machine_0(&h, &fd));
        ZN_TRY_GOTO(serve_machine_0(fd, exit_code));
    }
fail:
    for (int i = 0; i < h.n; i++)
        if (h.partners[i].fd >= 0)
            close(h.partners[i].fd);
    if (fd >= 0)
        close(fd);
    if (h.listen_fd >= 0)
        close(h.listen_fd);
    if (h.relay_fd >= 0)
        close(h.relay_fd);
    zn_free(h.partners);
    return status;
}

zinc_status zn_launch_relay(const char *host, const char *const *words, int n_words, int *exit_code)
{
    zinc_status status;
    const char *name = zn_launch_getenv(RELAY_NAME);
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    char to[64] = "";
    zn_buf command = {0};
    int32_t code;
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    snprintf(to, sizeof to, "%s", host);
    for (int i = 0; i < n_words; i++) /* shell text already, as ssh gets it */
        ZN_TRY_GOTO(zn_buf_printf(&command, "%s%s", i ? " " : "", words[i]));
    snprintf(address.sun_path + 1, sizeof address.sun_path - 1, "%s", name ? name : "");
    const socklen_t size =
        (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + strlen(address.sun_path + 1));
    const uint32_t n = (uint32_t)command.n;
    if (!name || fd < 0 || connect(fd, (const struct sockaddr *)&address, size) != 0 ||
        !send_all(fd, to, sizeof to) || !send_all(fd, &n, sizeof n) ||
        !send_all(fd, command.data, command.n))
        ZN_FAIL_GOTO(ZINC_E_COMM, "no launcher to relay to: %s", strerror(errno));
    if (!recv_all(fd, &code, sizeof code))
        ZN_FAIL_GOTO(ZINC_E_COMM, "machine %s is not there", host);
    *exit_code = code;
fail:
    if (fd >= 0)
        close(fd);
    zn_buf_fini(&command);
    return status;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* launch_plan.c — from options to a plan: hosts, ranks, environment, words. */
#include "launch/launch_internal.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/fs.h"
#include "base/log.h"

/* ---- this machine ---- */

const char *zn_host_address(const char *name)
{
    const char *at = strrchr(name, '@');
    return at ? at + 1 : name;
}

static bool same_address(const struct sockaddr *a, const struct sockaddr *b)
{
    if (a->sa_family != b->sa_family)
        return false;
    if (a->sa_family == AF_INET)
        return memcmp(&((const struct sockaddr_in *)(const void *)a)->sin_addr,
                      &((const struct sockaddr_in *)(const void *)b)->sin_addr,
                      sizeof(struct in_addr)) == 0;
    return a->sa_family == AF_INET6 &&
           memcmp(&((const struct sockaddr_in6 *)(const void *)a)->sin6_addr,
                  &((const struct sockaddr_in6 *)(const void *)b)->sin6_addr,
                  sizeof(struct in6_addr)) == 0;
}

static bool resolves_to_here(const char *address)
{
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
    struct addrinfo *found = NULL;
    struct ifaddrs *own = NULL;
    bool here = false;
    if (getaddrinfo(address, NULL, &hints, &found) == 0 && getifaddrs(&own) == 0)
        for (const struct addrinfo *a = found; a && !here; a = a->ai_next)
            for (const struct ifaddrs *i = own; i && !here; i = i->ifa_next)
                here = i->ifa_addr && same_address(a->ai_addr, i->ifa_addr);
    if (found)
        freeaddrinfo(found);
    if (own)
        freeifaddrs(own);
    return here;
}

bool zn_host_is_local(const char *name, bool resolve)
{
    char own[256] = "";
    if (strchr(name, '@')) /* another user: only ssh can become that one */
        return false;
    gethostname(own, sizeof own - 1);
    if (strcmp(name, "localhost") == 0 || strcmp(name, "127.0.0.1") == 0 ||
        strcmp(name, "::1") == 0 || strcmp(name, own) == 0)
        return true;
    return resolve && resolves_to_here(name);
}

bool zn_port_is_free(int port, int *out)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    socklen_t n = sizeof address;
    const int one = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return false;
    /* a port whose last job has just ended is free */
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    const bool good = bind(fd, (const struct sockaddr *)&address, sizeof address) == 0 &&
                      listen(fd, 1) == 0 && getsockname(fd, (struct sockaddr *)&address, &n) == 0;
    close(fd);
    if (good && out)
        *out = ntohs(address.sin_port);
    return good;
}

/* A port that is free now is bound by rank 0 only seconds later; until then a name of its own in
 * the abstract socket space, which belongs to the network namespace as ports do, keeps other
 * launchers of this host from it. */
static bool reserve_port(int port, int *fd)
{
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    const int n =
        snprintf(name.sun_path + 1, sizeof name.sun_path - 1, "zinc-master-port-%d", port);
    *fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (*fd < 0 ||
        bind(*fd, (const struct sockaddr *)&name,
             (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n)) == 0 ||
        errno != EADDRINUSE)
        return true; /* where there is no such space there is no reservation */
    close(*fd);
    *fd = -1;
    return false;
}

/* ---- hosts ---- */

static zinc_status read_hostfile(const char *path, zn_pool *pool)
{
    zinc_status status;
    zn_buf text = {0};
    if (!zn_fs_exists(path))
        ZN_FAIL(ZINC_E_CONFIG,
                "--hostfile %s: there is no such file; without --hostfile the ranks run on this "
                "host",
                path);
    if (zn_fs_is_dir(path))
        ZN_FAIL(ZINC_E_CONFIG, "--hostfile %s is a folder; expected a file of NAME slots=N lines",
                path);
    ZN_TRY_GOTO(zn_fs_read(path, 16 << 20, &text));
    ZN_TRY_GOTO(zn_hostfile_parse(text.data, text.n, path, pool));
fail:
    zn_buf_fini(&text);
    return status;
}

/* Hosts and slots that take part. */
static zinc_status select_hosts(const zn_launch_options *o, zn_pool *pool)
{
    const bool filtered = (o->include && *o->include) || (o->exclude && *o->exclude);
    const bool by_number = o->num_nodes > 0 || o->num_ranks > 0;
    const char *path = o->hostfile;
    char name[32];
    if (filtered && by_number)
        ZN_FAIL(ZINC_E_INVALID, "--include and --exclude say which slots; --num_nodes and "
                                "--num_ranks say how many: give one kind");
    if (!path && !o->this_host && zn_fs_exists(ZN_DEFAULT_HOSTFILE))
        path = ZN_DEFAULT_HOSTFILE;
    if (path) {
        ZN_TRY(read_hostfile(path, pool));
        return filtered ? zn_pool_filter(pool, o->include, o->exclude)
                        : zn_pool_trim(pool, o->num_nodes, o->num_ranks);
    }
    if (zn_launch_in_allocation(o)) {
        ZN_TRY(zn_slurm_pool(o->num_ranks, pool));
        return filtered ? zn_pool_filter(pool, o->include, o->exclude)
                        : zn_pool_trim(pool, o->num_nodes, 0);
    }
    if (o->num_nodes > 1 && !o->no_ssh)
        ZN_FAIL(ZINC_E_CONFIG,
                "--num_nodes %lld, but there is no hostfile to take hosts from; give --hostfile "
                "F, or start this on every host with --no_ssh --node_rank K --master_addr A",
                (long long)o->num_nodes);
    ZN_TRY(zn_pool_add_this_host(pool, o->num_nodes > 1 ? "node-0" : "localhost", o->num_ranks));
    for (int64_t i = 1; i < o->num_nodes; i++) {
        if (i * pool->hosts[0].n_slots > ZN_MAX_SLOTS)
            ZN_FAIL(ZINC_E_INVALID, "--num_nodes %lld is too many", (long long)o->num_nodes);
        snprintf(name, sizeof name, "node-%lld", (long long)i);
        ZN_TRY(zn_pool_add(pool, name, strlen(name), pool->hosts[0].n_slots, pool->hosts[0].slots));
    }
    return zn_pool_filter(pool, o->include, o->exclude);
}

/* ---- address and port where rank 0 listens ---- */

static zinc_status choose_address(const zn_launch_options *o, zn_plan *plan)
{
    char own[256] = "";
    const char *first = plan->pool.n > 0 ? plan->pool.hosts[0].name : "localhost";
    const char *address = zn_host_address(first);
    gethostname(own, sizeof own - 1);
    if (o->master_addr)
        address = o->master_addr;
    else if (plan->pool.n <= 1 && zn_host_is_local(first, false))
        address = "127.0.0.1";
    else if (zn_host_is_local(first, false) && own[0])
        address = own; /* the others cannot reach "localhost" */
    return zn_strdup(address, &plan->master_addr);
}

/* Whether the port is free here; it is then this job's. zinc train itself uses none. */
static bool take_port(zn_plan *plan, int port)
{
    if (!zn_port_is_free(port, NULL) || (!plan->native && !reserve_port(port, &plan->port_fd)))
        return false;
    plan->master_port = port;
    return true;
}

static zinc_status choose_port(const zn_launch_options *o, zn_plan *plan)
{
    const char *given = zn_launch_getenv("MASTER_PORT");
    const char *source = o->master_port > 0 ? "--master_port" : "MASTER_PORT";
    long port = o->master_port;
    if (port <= 0 && given && *given) {
        char *end;
        port = strtol(given, &end, 10);
        if (*end || port < 1 || port > 65535)
            ZN_FAIL(ZINC_E_CONFIG, "MASTER_PORT is \"%s\"; expected a number from 1 to 65535",
                    given);
    }
    const bool here = plan->pool.n > 0 && zn_host_is_local(plan->pool.hosts[0].name, false) &&
                      !(o->no_ssh && o->node_rank > 0);
    plan->master_port = port > 0 ? (int)port : ZN_DEFAULT_MASTER_PORT;
    if (!here || take_port(plan, plan->master_port))
        return ZINC_OK; /* another host's ports cannot be seen from here */
    if (port > 0)
        ZN_FAIL(ZINC_E_CONFIG,
                "%s %ld is in use on this host; leave it away and a free one is taken", source,
                port);
    if (o->no_ssh) /* every host must come to the same port without asking another */
        ZN_FAIL(ZINC_E_CONFIG,
                "port %d is in use on this host; give the same --master_port on "
                "every host",
                plan->master_port);
    for (int i = 0, free_port; i < 100 && zn_port_is_free(0, &free_port); i++)
        if (take_port(plan, free_port))
            return ZINC_OK;
    ZN_FAIL(ZINC_E_IO, "no free TCP port on this host: %s", strerror(errno));
}

/* ---- ranks ---- */

static bool is_python(const zn_launch_options *o)
{
    const char *program = o->program[0];
    const size_t n = strlen(program);
    return !o->no_python && (o->module || (n > 3 && strcmp(program + n - 3, ".py") == 0));
}

static zinc_status add_words(const zn_launch_options *o, const zn_plan *plan, zn_words *argv)
{
    if (o->venv_script) { /* words are $@ of the script, data and not shell text */
        ZN_TRY(zn_words_add(argv, "bash"));
        ZN_TRY(zn_words_add(argv, "-c"));
        ZN_TRY(zn_words_add(argv, ". \"$0\" && exec \"$@\""));
        ZN_TRY(zn_words_add(argv, o->venv_script));
    }
    if (is_python(o)) {
        ZN_TRY(zn_words_add(argv, "python3"));
        ZN_TRY(zn_words_add(argv, "-u"));
        if (o->module)
            ZN_TRY(zn_words_add(argv, "-m"));
    }
    for (int i = 0; i < o->n_program; i++)
        ZN_TRY(zn_words_add(argv, i == 0 && strcmp(o->program[0], "zinc") == 0 ? plan->self
                                                                               : o->program[i]));
    return ZINC_OK;
}

static zinc_status add_slots(const zn_host *host, zn_words *env)
{
    zinc_status status;
    zn_buf list = {0};
    ZN_TRY_GOTO(zn_buf_puts(&list, "CUDA_VISIBLE_DEVICES="));
    for (int i = 0; i < host->n_slots; i++)
        ZN_TRY_GOTO(zn_buf_printf(&list, "%s%d", i ? "," : "", host->slots[i]));
    ZN_TRY_GOTO(zn_words_set(env, list.data));
fail:
    zn_buf_fini(&list);
    return status;
}

/* A mask that names devices otherwise than by number ("GPU-5f…") passes on as it is; so does
 * Slurm's, which each host has its own of. */
static bool keeps_mask(const zn_launch_options *o, const zn_plan *plan)
{
    const char *mask = zn_launch_getenv("CUDA_VISIBLE_DEVICES");
    const bool filtered = (o->include && *o->include) || (o->exclude && *o->exclude);
    if (mask && plan->pool.is_allocation)
        return !filtered;
    return mask && strncmp(mask, "GPU-", 4) == 0 && !plan->pool.is_hostfile;
}

static zinc_status add_rank(const zn_launch_options *o, const zn_plan *plan, const zn_words *env,
                            zn_process *p)
{
    const zn_host *host = &plan->pool.hosts[p->host];
    ZN_TRY(zn_words_addf(&p->env, "RANK=%d", p->rank));
    ZN_TRY(zn_words_addf(&p->env, "LOCAL_RANK=%d", p->local_rank));
    ZN_TRY(zn_words_addf(&p->env, "WORLD_SIZE=%d", plan->world));
    ZN_TRY(zn_words_addf(&p->env, "LOCAL_WORLD_SIZE=%d", host->n_slots));
    ZN_TRY(zn_words_addf(&p->env, "LOCAL_SIZE=%d", host->n_slots));
    ZN_TRY(zn_words_addf(&p->env, "CROSS_RANK=%d", p->host));
    ZN_TRY(zn_words_addf(&p->env, "CROSS_SIZE=%d", plan->pool.n));
    ZN_TRY(zn_words_addf(&p->env, "MASTER_ADDR=%s", plan->master_addr));
    ZN_TRY(zn_words_addf(&p->env, "MASTER_PORT=%d", plan->master_port));
    if (!keeps_mask(o, plan))
        ZN_TRY(add_slots(host, &p->env));
    for (int i = 0; i < env->n; i++) /* a file or --export may say otherwise, and means it */
        ZN_TRY(zn_words_set(&p->env, env->items[i]));
    return add_words(o, plan, &p->argv);
}

/* The cores of a rank, as far as they are known here: those of another host only where
 * --bind_core_list names them. */
static zinc_status add_cores(const zn_launch_options *o, const zn_plan *plan, zn_process *p)
{
    zinc_status status;
    const zn_host *host = &plan->pool.hosts[p->host];
    const bool local =
        zn_host_is_local(host->name, false) || (o->launcher && strcmp(o->launcher, "local") == 0);
    int *cores = NULL, n = 0, first;
    if (!plan->bound || (!local && !o->bind_core_list))
        return ZINC_OK;
    if (local)
        ZN_TRY(zn_cores_usable(o->bind_core_list, &cores, &n));
    else
        ZN_TRY(zn_parse_core_list(o->bind_core_list, &cores, &n));
    zn_cores_of_rank(n, host->n_slots, p->local_rank, &first, &p->n_cores);
    ZN_TRY_GOTO(zn_alloc_array(&p->cores, (size_t)p->n_cores + 1, sizeof *p->cores, "cores"));
    memcpy(p->cores, cores + first, (size_t)p->n_cores * sizeof *cores);
fail:
    zn_free(cores);
    return status;
}

static zinc_status add_ranks(const zn_launch_options *o, const zn_words *env, zn_plan *plan)
{
    if (plan->native)
        return zn_native_processes(o, plan, env);
    ZN_TRY(zn_alloc_array(&plan->processes, (size_t)plan->world + 1, sizeof *plan->processes,
                          "the plan"));
    for (int h = 0; h < plan->pool.n; h++)
        for (int k = 0; k < plan->pool.hosts[h].n_slots; k++) {
            zn_process *p = &plan->processes[plan->n_processes];
            *p = (zn_process){.rank = plan->n_processes, .host = h, .local_rank = k};
            plan->n_processes++;
            ZN_TRY(add_rank(o, plan, env, p));
            ZN_TRY(add_cores(o, plan, p));
        }
    return ZINC_OK;
}

static zinc_status check_options(const zn_launch_options *o)
{
    static const char *const known[] = {"ssh", "local", "openmpi", "mpich", "slurm", "pdsh"};
    bool found = !o->launcher;
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        found = found || strcmp(o->launcher, known[i]) == 0;
    if (!found)
        ZN_FAIL(ZINC_E_INVALID, "--launcher %s: there are ssh, local, openmpi, mpich, slurm, pdsh",
                o->launcher);
    if (o->module && o->no_python)
        ZN_FAIL(ZINC_E_INVALID, "--module runs a Python module and --no_python none: give one");
    if (o->no_ssh && (o->node_rank < 0 || !o->master_addr))
        ZN_FAIL(ZINC_E_INVALID, "--no_ssh starts this host's ranks only: it needs --node_rank K "
                                "and --master_addr A");
    if (o->node_rank >= 0 && !o->no_ssh)
        ZN_FAIL(ZINC_E_INVALID, "--node_rank goes with --no_ssh");
    if (o->bind_core_list) {
        zinc_status status;
        int *cores = NULL, n;
        status = zn_parse_core_list(o->bind_core_list, &cores, &n);
        zn_free(cores);
        if (status != ZINC_OK)
            zn_error_prefix("--bind_core_list: ");
        return status;
    }
    return ZINC_OK;
}

static zinc_status find_self(zn_plan *plan)
{
    char path[4096];
    if (!getcwd(path, sizeof path))
        ZN_FAIL(ZINC_E_IO, "the current folder has no path: %s", strerror(errno));
    ZN_TRY(zn_strdup(path, &plan->cwd));
    const ssize_t n = readlink("/proc/self/exe", path, sizeof path - 1);
    if (n < 0)
        ZN_FAIL(ZINC_E_IO, "cannot find the zinc program: %s", strerror(errno));
    path[n] = '\0';
    return zn_strdup(path, &plan->self);
}

/* Hosts that could not be used in an earlier attempt stay out of this one. */
static zinc_status leave_out(zn_pool *pool, const zn_words *lost)
{
    for (int i = 0; i < pool->n; i++)
        for (int k = 0; k < lost->n; k++)
            if (strcmp(pool->hosts[i].name, lost->items[k]) == 0)
                pool->hosts[i].n_slots = 0;
    return zn_pool_filter(pool, NULL, NULL);
}

zinc_status zn_plan_create(const zn_launch_options *o, zn_plan **out)
{
    return zn_plan_create_without(o, NULL, out);
}

zinc_status zn_plan_create_without(const zn_launch_options *o, const zn_words *lost, zn_plan **out)
{
    zinc_status status;
    zn_plan *plan = NULL;
    zn_words env = {0};
    ZN_TRY(zn_alloc(&plan, sizeof *plan, "the plan"));
    plan->port_fd = -1;
    ZN_TRY_GOTO(check_options(o));
    ZN_TRY_GOTO(select_hosts(o, &plan->pool));
    if (lost)
        ZN_TRY_GOTO(leave_out(&plan->pool, lost));
    if (o->no_ssh && o->node_rank >= plan->pool.n)
        ZN_FAIL_GOTO(ZINC_E_INVALID, "--node_rank %lld, but the plan has %d hosts (from 0)",
                     (long long)o->node_rank, plan->pool.n);
    plan->world = zn_pool_n_slots(&plan->pool);
    ZN_TRY_GOTO(find_self(plan));
    plan->native = zn_native_program(o);
    plan->by_hand_rank = zn_launch_is_by_hand(o) ? (int)o->node_rank : -1;
    plan->bound = o->bind_cores || o->bind_core_list;
    ZN_TRY_GOTO(choose_address(o, plan));
    ZN_TRY_GOTO(choose_port(o, plan));
    ZN_TRY_GOTO(zn_env_collect(o->exports, o->n_exports, &env));
    ZN_TRY_GOTO(add_ranks(o, &env, plan));
    zn_words_fini(&env);
    *out = plan;
    return ZINC_OK;
fail:
    zn_words_fini(&env);
    zn_plan_destroy(plan);
    return status;
}

void zn_plan_destroy(zn_plan *plan)
{
    if (!plan)
        return;
    for (int i = 0; i < plan->n_processes; i++) {
        zn_words_fini(&plan->processes[i].env);
        zn_words_fini(&plan->processes[i].argv);
        zn_free(plan->processes[i].cores);
    }
    if (plan->port_fd >= 0)
        close(plan->port_fd);
    zn_free(plan->processes);
    zn_pool_fini(&plan->pool);
    zn_free(plan->master_addr);
    zn_free(plan->cwd);
    zn_free(plan->self);
    zn_free(plan);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* wire.h — frames between a launcher and an agent, over any pair of descriptors.
 *
 * A stream begins with a line of its own (ZN_WIRE_MAGIC), so that what a remote shell says before
 * it is skipped. A frame is 12 bytes {type, stream, 0, 0, rank, size} (little-endian) and `size`
 * bytes. Nothing blocks: sending appends, zn_wire_flush writes what goes. Layer: launch. */
#ifndef ZN_LAUNCH_WIRE_H
#define ZN_LAUNCH_WIRE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/mem.h"

#define ZN_WIRE_MAGIC "\nzinc-agent 1\n"
#define ZN_WIRE_BACKLOG (1u << 20) /* bytes waiting to be written before reading pauses */
#define ZN_HEARTBEAT_S 1.0
#define ZN_TOKEN_BYTES 32             /* hexadecimal digits */
#define ZN_ANNOUNCEMENT "zinc-agent " /* and the token: a line on standard output (runner.c) */
#define ZN_SILENCE_S 5.0              /* a partner that says nothing for so long is lost */

enum {
    ZN_FRAME_HEARTBEAT = 'h',
    /* launcher to agent */
    ZN_FRAME_JOB = 'j', /* what to run; checked, not yet started */
    ZN_FRAME_GO = 'g',
    ZN_FRAME_SIGNAL = 's', /* rank field: the signal */
    ZN_FRAME_STACK = 'k',  /* rank; and back, text: what gdb says, or empty */
    ZN_FRAME_END = 'e',    /* rank field: milliseconds from SIGTERM to SIGKILL */
    /* agent to launcher */
    ZN_FRAME_READY = 'r',   /* version, NUL, token, NUL; rank field: place in the plan or -1 */
    ZN_FRAME_CHECKED = 'c', /* empty: all is well; else one problem a line; stream: exit code */
    ZN_FRAME_STARTED = 'p', /* rank; text: its process id */
    ZN_FRAME_OUTPUT = 'o',  /* rank, stream 1 or 2 */
    ZN_FRAME_EXIT = 'x',    /* rank; text: its wait status */
    ZN_FRAME_BEAT = 'b',    /* rank has touched its heartbeat file */
    ZN_FRAME_STATE = 't',   /* rank; stream 1: stopped, 0: goes on */
    ZN_FRAME_DONE = 'd',    /* all of this host's ranks are gone */
};

typedef struct zn_wire {
    int in, out; /* -1: none; may be the same */
    zn_buf received, pending;
    size_t read_at; /* bytes of `received` that are used */
    bool greeted;   /* the partner's magic was seen */
    bool closed;    /* the partner is gone */
    double heard;   /* when the last bytes came */
    double sent;    /* when the last heartbeat went */
} zn_wire;

typedef struct zn_frame {
    char type;
    int stream, rank;
    const char *data; /* borrowed until the next call on the wire; a NUL follows */
    size_t n_bytes;
} zn_frame;

/** Take over the descriptors and set them non-blocking. */
void zn_wire_open(zn_wire *wire, int in, int out);
void zn_wire_close(zn_wire *wire);
ZINC_MUST_CHECK zinc_status zn_wire_greet(zn_wire *wire);
ZINC_MUST_CHECK zinc_status zn_wire_send(zn_wire *wire, int type, int stream, int rank,
                                         const void *data, size_t n_bytes);
/** Write what goes without waiting; a partner that is gone sets `closed`. */
void zn_wire_flush(zn_wire *wire);
/** Read what is there; end of file sets `closed`. Errors: E_NOMEM. */
ZINC_MUST_CHECK zinc_status zn_wire_fill(zn_wire *wire);
/** The next whole frame, if *got. E_FORMAT: the partner speaks something else. */
ZINC_MUST_CHECK zinc_status zn_wire_next(zn_wire *wire, zn_frame *frame, bool *got);
/** Put the frame that came last back, to be read again. */
void zn_wire_unread(zn_wire *wire, const zn_frame *frame);
/** A heartbeat, if one is due. */
ZINC_MUST_CHECK zinc_status zn_wire_beat(zn_wire *wire, double now);

#endif

/*
 * libnectary: a store of objects for caches, on a file or a raw disk.
 *
 * All calls may be made from any thread, also at the same time. Every call except nectary_last_error returns NECTARY_OK
 * (0) or one of the codes below; then nectary_last_error says what went wrong, for the calling thread. Names are texts
 * of 1 to NECTARY_NAME_BYTES_MAX bytes. After fork, the child must not use a store that its parent opened.
 *
 * A cache may forget: a file that was written may be absent later, because its room was needed. It never lies: a read
 * returns the bytes of one complete write.
 */
#ifndef NECTARY_H
#define NECTARY_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The longest name and the longest device SPEC, in bytes, without the zero byte at the end. */
#define NECTARY_NAME_BYTES_MAX 8192
#define NECTARY_SPEC_BYTES_MAX 65536

/* The call succeeded. */
#define NECTARY_OK 0
/* There is no such file; from nectary_open: there is no store. */
#define NECTARY_ABSENT 1
/* The device holds something other than a store, a store of another version, or one too damaged to open. */
#define NECTARY_CORRUPT 2
/* Not possible now: budgets are used up, another process owns the store, or pointers are not given back. Try later. */
#define NECTARY_BUSY 3
/* A null pointer, an unknown handle, or a name or length out of bounds. */
#define NECTARY_INVALID 4
/* The device failed. */
#define NECTARY_IO 5
/* The store accepts no more writes after an earlier failure, or is closed. Open it again. */
#define NECTARY_STOPPED 6
/* A bug in the library. */
#define NECTARY_INTERNAL 7

/* An open store. The library never dereferences the pointer: a stale one is refused with NECTARY_INVALID. */
typedef struct nectary_store nectary_store;

/*
 * Opens the store on the device that a SPEC names, such as a file's path. If the device is absent or blank, a store of
 * create_bytes is created; with 0 none is. memory_bytes bounds everything that the store keeps in memory, at least 8
 * MiB; 0 means 256 MiB. Only one process can have a store open.
 */
int nectary_open(const char *spec, uint64_t create_bytes, uint64_t memory_bytes, nectary_store **store);

/*
 * Writes all pending data, flushes, and closes. NECTARY_BUSY if pointers of nectary_read_file have not been given back:
 * then the store stays open. After any other failure the store is closed anyway. No other call on the store may be
 * under way.
 */
int nectary_close(nectary_store *store);

/*
 * Stores a file under a name, and replaces an earlier one. The bytes are copied. When the call returns, reads find the
 * file; it is written to the device within half a second. It survives the end of the process once it is written, and
 * loss of power once the store has been closed.
 */
int nectary_write_file(nectary_store *store, const char *name, const void *data, size_t length);

/*
 * Like nectary_write_file, for a large file that is not worth its place in memory. At present the store itself decides
 * what it keeps in memory, and both calls do the same.
 */
int nectary_write_nomem_file(nectary_store *store, const char *name, const void *data, size_t length);

/*
 * Reads a file. NECTARY_ABSENT is an ordinary answer of a cache. On success *data points to *length bytes, which must
 * not be changed. They stay the same until nectary_done_read_file, even if the file is deleted or replaced. Files that
 * the store keeps in one piece are not copied; larger ones are assembled. A program can hold at most 65536 pointers of
 * a store at the same time. After a failure *data is null.
 */
int nectary_read_file(nectary_store *store, const char *name, const void **data, size_t *length);

/* Gives back a pointer of nectary_read_file, once per successful read. After that the bytes must not be used. */
int nectary_done_read_file(nectary_store *store, const void *data);

/*
 * Deletes a file; it is no failure if the file is absent. When the call returns, no read finds what was written before,
 * not even after loss of power.
 */
int nectary_delete_file(nectary_store *store, const char *name);

/*
 * Says that other will be wanted together with name, like an image with its page, so that both are written side by side
 * and may be read at once. A hint: the files need not exist, and none changes. It affects files that are written after
 * it, or at most half a second before it.
 */
int nectary_collocate_files(nectary_store *store, const char *name, const char *other);

/* What went wrong in this thread's last failed call; valid until the next one fails; empty if none has failed. */
const char *nectary_last_error(void);

#ifdef __cplusplus
}
#endif

#endif

/*
 * libnectary: a store of objects for caches, on a file or a raw disk.
 *
 * All calls may be made from any thread, also at the same time. Every call except nectary_last_error returns NECTARY_OK
 * (0) if it succeeds, and otherwise one of the codes below. After a failure, nectary_last_error returns a text about
 * the last failed call of the same thread. Names are texts of 1 to NECTARY_NAME_BYTES_MAX bytes. After fork, the child
 * must not use a store that its parent opened.
 *
 * A store is a cache. A file that was written may be absent later, because the store needed the room for other files.
 * But a read never returns wrong bytes: it returns those of one complete write.
 */
#ifndef NECTARY_H
#define NECTARY_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The longest name, and the longest SPEC of a device, in bytes, without the zero byte at the end. */
#define NECTARY_NAME_BYTES_MAX 8192
#define NECTARY_SPEC_BYTES_MAX 65536

/* The call succeeded. */
#define NECTARY_OK 0
/* There is no such file; from nectary_open: there is no store. */
#define NECTARY_ABSENT 1
/* The device has something other than a store, a store of another version, or one that is too damaged to open. */
#define NECTARY_CORRUPT 2
/*
 * The call is not possible now: budgets are used up, another process owns the store, or pointers have not been given
 * back. Try again later.
 */
#define NECTARY_BUSY 3
/* An argument is bad: a null pointer, an unknown handle, or a name or length out of bounds. */
#define NECTARY_INVALID 4
/* The device failed. */
#define NECTARY_IO 5
/* The store accepts no more writes after an earlier failure, or is closed. Open it again. */
#define NECTARY_STOPPED 6
/* The library has a bug. */
#define NECTARY_INTERNAL 7

/* An open store. The pointer is a handle: after nectary_close the library refuses it with NECTARY_INVALID. */
typedef struct nectary_store nectary_store;

/*
 * Opens the store on the device that a SPEC names; a file's path is a SPEC. If the device is absent or blank, a store
 * of create_bytes is created, unless create_bytes is 0. memory_bytes is the bound on everything that the store keeps in
 * memory. It must be at least 8 MiB; 0 means 256 MiB. Only one process at a time can have a store open.
 */
int nectary_open(const char *spec, uint64_t create_bytes, uint64_t memory_bytes, nectary_store **store);

/*
 * Writes and flushes all pending data, and closes the store. Returns NECTARY_BUSY if pointers of nectary_read_file have
 * not been given back; then the store stays open. After any other failure the store is closed all the same. No other
 * call on the store may be under way.
 */
int nectary_close(nectary_store *store);

/*
 * Stores a file under a name, and replaces an earlier one. The bytes are copied. When the call returns, reads find the
 * file; it is written to the device within half a second. It survives the end of the process once it is written, and
 * loss of power once the store has been closed.
 */
int nectary_write_file(nectary_store *store, const char *name, const void *data, size_t length);

/*
 * Like nectary_write_file, for a file that need not stay in memory, for example because it is large. At present the
 * store itself decides what it keeps in memory, and both calls do the same.
 */
int nectary_write_nomem_file(nectary_store *store, const char *name, const void *data, size_t length);

/*
 * Reads a file. A cache often returns NECTARY_ABSENT. On success, *data points to *length bytes, which the program must
 * not change. They stay the same until nectary_done_read_file, even if the file is deleted or replaced. Files that the
 * store keeps in one piece are not copied; larger ones are assembled. A program can hold at most 65536 pointers of a
 * store at the same time. After a failure, *data is null.
 */
int nectary_read_file(nectary_store *store, const char *name, const void **data, size_t *length);

/*
 * Gives back a pointer of nectary_read_file. A program calls it once for each successful read, and must not use the
 * bytes after that.
 */
int nectary_done_read_file(nectary_store *store, const void *data);

/*
 * Deletes a file. It is no failure if the file is absent. When the call returns, no read finds bytes that were written
 * before the call, not even after loss of power.
 */
int nectary_delete_file(nectary_store *store, const char *name);

/*
 * Tells the store that the file other will be wanted together with the file name, like an image with its page. The
 * store then writes both side by side, and may read them at once. This is only a hint: the files need not exist, and
 * neither is changed. It affects files that are written after the call, or at most half a second before it.
 */
int nectary_collocate_files(nectary_store *store, const char *name, const char *other);

/*
 * Returns a text that says what went wrong in this thread's last failed call; it is empty if none has failed. The text
 * is valid until the thread's next failed call.
 */
const char *nectary_last_error(void);

#ifdef __cplusplus
}
#endif

#endif

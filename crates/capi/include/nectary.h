/*
 * libnectary: a store of objects for caches, on a file or a raw disk.
 *
 * Every call may be made from any thread, and several at the same time. All but nectary_last_error return NECTARY_OK (0)
 * or one of the codes below; nectary_last_error then says what went wrong, for the thread that asks. Names are texts of 1
 * to NECTARY_NAME_BYTES_MAX bytes. After fork, the child must not use a store that its parent opened.
 *
 * A cache may forget: a file that was written may be absent later, when room was needed. It never lies: what is read are
 * the bytes of one complete write.
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

/* It was done. */
#define NECTARY_OK 0
/* There is no such file; or, where a store was to be opened, no store. */
#define NECTARY_ABSENT 1
/* What is on the device is not a store, is of another version, or is damaged where a store cannot do without it. */
#define NECTARY_CORRUPT 2
/* Not now: budgets are used up, another process owns the store, or pointers have not been given back. Try again later. */
#define NECTARY_BUSY 3
/* A null pointer, an unknown handle, or a name or length out of bounds. */
#define NECTARY_INVALID 4
/* The device failed. */
#define NECTARY_IO 5
/* The store takes no more writes after an earlier failure, or is closed. Open it again. */
#define NECTARY_STOPPED 6
/* A bug in the library. */
#define NECTARY_INTERNAL 7

/* An open store. The library never follows the pointer: one that is stale is refused with NECTARY_INVALID. */
typedef struct nectary_store nectary_store;

/*
 * Opens the store on the device that a SPEC names, such as a file's path. Where the device is absent or blank, a store of
 * create_bytes is made; with 0 none is. memory_bytes is for everything that the store keeps in memory, at least 8 MiB; 0
 * stands for 256 MiB. One process has a store at a time.
 */
int nectary_open(const char *spec, uint64_t create_bytes, uint64_t memory_bytes, nectary_store **store);

/*
 * Writes everything that waits, flushes, and closes. NECTARY_BUSY where pointers of nectary_read_file have not been given
 * back: then the store stays open. After any other failure it is closed all the same. No other call on the store may be
 * under way.
 */
int nectary_close(nectary_store *store);

/*
 * Stores a file under a name, in place of what was there. The bytes are copied. When it returns, reads find the file; it
 * is written to the device within half a second. It survives the end of the process once it is written, and loss of power
 * once the store has been closed.
 */
int nectary_write_file(nectary_store *store, const char *name, const void *data, size_t length);

/*
 * As nectary_write_file, for a large file that is not worth its place in memory. At present the store decides by itself
 * what it keeps in memory, and does the same for both.
 */
int nectary_write_nomem_file(nectary_store *store, const char *name, const void *data, size_t length);

/*
 * Finds a file, or NECTARY_ABSENT, which every cache has to be ready for. *data then points to *length bytes, which must
 * not be changed and stay as they are until nectary_done_read_file, also when the file is deleted or replaced meanwhile.
 * Files that the store keeps in one piece are not copied; larger ones are put together. A program holds at most 65536
 * pointers of a store at the same time. After a failure *data is null.
 */
int nectary_read_file(nectary_store *store, const char *name, const void **data, size_t *length);

/* Gives back what nectary_read_file gave, once for each time that it gave it. The bytes must not be touched any more. */
int nectary_done_read_file(nectary_store *store, const void *data);

/*
 * Deletes a file; one that is absent is no failure. When it returns, no read finds what was written before, also after
 * loss of power.
 */
int nectary_delete_file(nectary_store *store, const char *name);

/*
 * Says that other will be wanted with name, an image with its page, so that they are written side by side and may be read at
 * once. A hint: no file need exist, and none changes. It counts for what is written after it, or in the half second before.
 */
int nectary_collocate_files(nectary_store *store, const char *name, const char *other);

/* What went wrong in this thread's last call that failed, until its next one that fails; an empty text before. */
const char *nectary_last_error(void);

#ifdef __cplusplus
}
#endif

#endif

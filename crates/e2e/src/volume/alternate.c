/* A library that is preloaded into a program: every second call with a path of a mount goes to another mount of the
 * same volume.
 *
 * ALTERNATE_FROM and ALTERNATE_TO are the two directories; their names have the same length. ALTERNATE_COUNT is a file
 * with two 64-bit counters, which all processes share: of all calls with such a path, and of those that went to the
 * other mount. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/time.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

static dev_t first_device, second_device;
static dev_t device_of(const char *path);
static const char *from, *to;
static size_t length;
static volatile uint64_t *counts;
static uint64_t here[2];

__attribute__((constructor)) static void begin(void) {
    from = getenv("ALTERNATE_FROM");
    to = getenv("ALTERNATE_TO");
    const char *count = getenv("ALTERNATE_COUNT");
    if (!from || !to || !count || strlen(from) != strlen(to)) { fprintf(stderr, "alternate: no directories\n"); _exit(99); }
    length = strlen(from);
    int (*really_open)(const char *, int, ...) = dlsym(RTLD_NEXT, "open");
    int file = really_open(count, O_RDWR);
    counts = here;
    void *mapped = mmap(0, 16, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (file < 0 || mapped == MAP_FAILED) { fprintf(stderr, "alternate: no counters\n"); _exit(99); }
    counts = mapped;
    first_device = device_of(from);
    second_device = device_of(to);
}

/* Whether the path can be read: tests also pass invalid addresses. */
static int is_there(const char *path) {
    char byte;
    struct iovec into = {&byte, 1}, what = {(void *)path, 1};
    return process_vm_readv(getpid(), &into, 1, &what, 1, 0) == 1;
}

static int matches(const char *path) {
    return from && path && is_there(path) && strncmp(path, from, length) == 0 && (path[length] == '/' || path[length] == 0);
}

/* Counts a call with a path of the mount, and returns whether the call goes to the other mount. */
static int flips(int concerned) {
    if (!concerned || !counts) return 0;
    uint64_t calls = __atomic_fetch_add(&counts[0], 1, __ATOMIC_SEQ_CST);
    if (calls & 1) __atomic_fetch_add(&counts[1], 1, __ATOMIC_SEQ_CST);
    return calls & 1;
}

/* The path on the other mount, if the call goes there. The copy lives until the calling function returns. */
#define SENT(path, flip) ({ \
    const char *result_ = (path); \
    if ((flip) && matches(result_)) { \
        size_t all_ = strlen(result_) + 1; \
        char *copy_ = __builtin_alloca(all_); \
        memcpy(copy_, result_, all_); \
        memcpy(copy_, to, length); \
        result_ = copy_; \
    } \
    result_; })

#define REAL(type, name, ...) \
    static type (*real)(__VA_ARGS__); \
    if (!real) real = (type (*)(__VA_ARGS__))dlsym(RTLD_NEXT, #name)

/* Both mounts show the same files, so attributes from the other mount get the device number of the first mount. */
static dev_t device_of(const char *path) {
    struct stat found;
    int (*really_stat)(const char *, struct stat *) = dlsym(RTLD_NEXT, "stat");
    return really_stat && really_stat(path, &found) == 0 ? found.st_dev : 0;
}
#define SAME(buffer) ({ if ((buffer)->st_dev == second_device) (buffer)->st_dev = first_device; })
#define S1(name, T) \
    int name(const char *path, T *a) { REAL(int, name, const char *, T *); int flip = flips(matches(path)); int result = real(SENT(path, flip), a); if (result == 0) SAME(a); return result; }
#define S3(name, T) \
    int name(int at, const char *path, T *a, int b) { REAL(int, name, int, const char *, T *, int); int flip = flips(matches(path)); int result = real(at, SENT(path, flip), a, b); if (result == 0) SAME(a); return result; }
#define SF(name, T) \
    int name(int file, T *a) { REAL(int, name, int, T *); int result = real(file, a); if (result == 0) SAME(a); return result; }

/* Calls with one path, which is the first or the second argument. */
#define P0(type, name) \
    type name(const char *path) { REAL(type, name, const char *); int flip = flips(matches(path)); return real(SENT(path, flip)); }
#define P1(type, name, A) \
    type name(const char *path, A a) { REAL(type, name, const char *, A); int flip = flips(matches(path)); return real(SENT(path, flip), a); }
#define P2(type, name, A, B) \
    type name(const char *path, A a, B b) { REAL(type, name, const char *, A, B); int flip = flips(matches(path)); return real(SENT(path, flip), a, b); }
#define P4(type, name, A, B, C, D) \
    type name(const char *path, A a, B b, C c, D d) { REAL(type, name, const char *, A, B, C, D); int flip = flips(matches(path)); return real(SENT(path, flip), a, b, c, d); }
#define D1(type, name, A) \
    type name(int at, const char *path, A a) { REAL(type, name, int, const char *, A); int flip = flips(matches(path)); return real(at, SENT(path, flip), a); }
#define D2(type, name, A, B) \
    type name(int at, const char *path, A a, B b) { REAL(type, name, int, const char *, A, B); int flip = flips(matches(path)); return real(at, SENT(path, flip), a, b); }
#define D3(type, name, A, B, C) \
    type name(int at, const char *path, A a, B b, C c) { REAL(type, name, int, const char *, A, B, C); int flip = flips(matches(path)); return real(at, SENT(path, flip), a, b, c); }
#define V1(type, name, V, A) \
    type name(V v, const char *path, A a) { REAL(type, name, V, const char *, A); int flip = flips(matches(path)); return real(v, SENT(path, flip), a); }

P1(int, mkdir, mode_t) P0(int, rmdir) P0(int, unlink) P1(int, chmod, mode_t) P1(int, lchmod, mode_t)
P2(int, chown, uid_t, gid_t) P2(int, lchown, uid_t, gid_t) P1(int, truncate, off_t) P1(int, truncate64, off64_t)
P1(int, mkfifo, mode_t) P2(int, mknod, mode_t, dev_t) P1(int, access, int) P2(ssize_t, readlink, char *, size_t)
P1(long, pathconf, int) P0(void *, opendir) P1(int, creat, mode_t) P1(int, creat64, mode_t)
S1(stat, struct stat) S1(lstat, struct stat) S1(stat64, struct stat64) S1(lstat64, struct stat64)
S3(fstatat, struct stat) S3(fstatat64, struct stat64) SF(fstat, struct stat) SF(fstat64, struct stat64)
P1(int, utimes, const struct timeval *) P1(int, lutimes, const struct timeval *)
P4(int, setxattr, const char *, const void *, size_t, int) P4(int, lsetxattr, const char *, const void *, size_t, int)
V1(int, __xstat, int, struct stat *) V1(int, __lxstat, int, struct stat *)
V1(int, __xstat64, int, struct stat64 *) V1(int, __lxstat64, int, struct stat64 *)
D1(int, mkdirat, mode_t) D1(int, unlinkat, int) D1(int, mkfifoat, mode_t) D2(int, mknodat, mode_t, dev_t)
D2(int, fchmodat, mode_t, int) D3(int, fchownat, uid_t, gid_t, int) D2(int, faccessat, int, int)
D2(ssize_t, readlinkat, char *, size_t)
D2(int, utimensat, const struct timespec *, int) 
int statx(int at, const char *path, int flags, unsigned mask, struct statx *a) {
    REAL(int, statx, int, const char *, int, unsigned, struct statx *);
    int flip = flips(matches(path));
    int result = real(at, SENT(path, flip), flags, mask, a);
    if (result == 0 && makedev(a->stx_dev_major, a->stx_dev_minor) == second_device) {
        a->stx_dev_major = major(first_device);
        a->stx_dev_minor = minor(first_device);
    }
    return result;
}

#define OPEN(name) \
    int name(const char *path, int flags, ...) { \
        va_list rest; va_start(rest, flags); mode_t mode = va_arg(rest, mode_t); va_end(rest); \
        REAL(int, name, const char *, int, ...); int flip = flips(matches(path)); return real(SENT(path, flip), flags, mode); }
#define OPENAT(name) \
    int name(int at, const char *path, int flags, ...) { \
        va_list rest; va_start(rest, flags); mode_t mode = va_arg(rest, mode_t); va_end(rest); \
        REAL(int, name, int, const char *, int, ...); int flip = flips(matches(path)); return real(at, SENT(path, flip), flags, mode); }
OPEN(open) OPEN(open64) OPENAT(openat) OPENAT(openat64)

/* Both paths go to the same mount, because a link or a rename is made on one mount. */
#define TWO(name) \
    int name(const char *a, const char *b) { REAL(int, name, const char *, const char *); \
        int flip = flips(matches(a) || matches(b)); return real(SENT(a, flip), SENT(b, flip)); }
TWO(link) TWO(rename)
int linkat(int a, const char *x, int b, const char *y, int flags) {
    REAL(int, linkat, int, const char *, int, const char *, int);
    int flip = flips(matches(x) || matches(y));
    return real(a, SENT(x, flip), b, SENT(y, flip), flags);
}
int renameat(int a, const char *x, int b, const char *y) {
    REAL(int, renameat, int, const char *, int, const char *);
    int flip = flips(matches(x) || matches(y));
    return real(a, SENT(x, flip), b, SENT(y, flip));
}
int renameat2(int a, const char *x, int b, const char *y, unsigned flags) {
    REAL(int, renameat2, int, const char *, int, const char *, unsigned);
    int flip = flips(matches(x) || matches(y));
    return real(a, SENT(x, flip), b, SENT(y, flip), flags);
}
/* The target of a symbolic link is contents, so it is not replaced. */
int symlink(const char *target, const char *path) {
    REAL(int, symlink, const char *, const char *);
    int flip = flips(matches(path));
    return real(target, SENT(path, flip));
}
int symlinkat(const char *target, int at, const char *path) {
    REAL(int, symlinkat, const char *, int, const char *);
    int flip = flips(matches(path));
    return real(target, at, SENT(path, flip));
}

/* Unusual programs for the tests of the recorder: `unusual WAY FILE`. Each way reads blocks of FILE in an order that its
   test knows. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#define BLOCK 8192
static char buffer[BLOCK];
static const char *path;

static int open_file(void)
{
    int fd = open(path, O_RDONLY);
    if (fd < 0)
        exit(100);
    return fd;
}

static void read_block(int fd, long block)
{
    if (pread(fd, buffer, BLOCK, block * BLOCK) != BLOCK)
        exit(101);
}

static void *thread(void *first)
{
    int fd = open_file();
    for (long block = 0; block < 10; block++)
        read_block(fd, (long)first + block);
    close(fd);
    return NULL;
}

/* Four threads read, one after another so that the order is known. */
static int threads(void)
{
    pthread_t id;
    for (long first = 0; first < 40; first += 10)
        if (pthread_create(&id, NULL, thread, (void *)first) || pthread_join(id, NULL))
            return 102;
    return 0;
}

/* A program that is started by vfork from a thread other than the first. */
static void *launch(void *self)
{
    pid_t pid = vfork();
    if (pid == 0) {
        execl(self, "unusual", "plain", path, NULL);
        _exit(103);
    }
    waitpid(pid, NULL, 0);
    execl(self, "unusual", "plain", path, NULL);
    return NULL;
}

static int launches(char *self)
{
    pthread_t id;
    pthread_create(&id, NULL, launch, self);
    pthread_join(id, NULL);
    return 104;
}

static int plain(void)
{
    int fd = open_file();
    for (long block = 0; block < 5; block++)
        if (read(fd, buffer, BLOCK) != BLOCK)
            return 105;
    return 0;
}

/* An exec that fails does not make another program. */
static int failing(void)
{
    int fd = open_file();
    read_block(fd, 0);
    execl("/nowhere/nothing", "nothing", NULL);
    read_block(fd, 1);
    return 0;
}

/* Its own filter refuses getpid without notifying anybody. */
static int filtered(void)
{
    struct sock_filter program[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_getppid, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog filter = {sizeof program / sizeof *program, program};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter))
        return 106;
    if (syscall(SYS_getppid) != -1 || errno != EPERM)
        return 107;
    return plain();
}

static int hidden(void)
{
    prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
    return plain();
}

static int old(void)
{
#ifdef __x86_64__
    int fd = open_file();
    long result;
    /* read of the 32-bit interface, whose addresses are below 4 GiB only in a program that is not relocated. */
    __asm__ volatile("int $0x80" : "=a"(result) : "a"(3), "b"(fd), "c"(buffer), "d"(BLOCK) : "memory");
    return result == -ENOSYS ? 99 : 0;
#else
    return 99;
#endif
}

static int ring(void)
{
    char parameters[120];
    memset(parameters, 0, sizeof parameters);
    syscall(SYS_io_uring_setup, 1, parameters);
    syscall(SYS_io_submit, 0, 0, 0);
    return 0;
}

static void on_alarm(int signal)
{
    (void)signal;
}

/* Frequent signals do not make a call be seen twice. */
static int alarmed(void)
{
    struct itimerval often = {{0, 50}, {0, 50}};
    struct sigaction action = {.sa_handler = on_alarm, .sa_flags = SA_RESTART};
    sigaction(SIGALRM, &action, NULL);
    setitimer(ITIMER_REAL, &often, NULL);
    int fd = open_file();
    for (long round = 0; round < 2000; round++)
        read_block(fd, round % 40);
    return 0;
}

int main(int count, char **words)
{
    if (count != 3)
        return 110;
    const char *way = words[1];
    path = words[2];
    if (!strcmp(way, "threads"))
        return threads();
    if (!strcmp(way, "launches"))
        return launches(words[0]);
    if (!strcmp(way, "plain"))
        return plain();
    if (!strcmp(way, "failing"))
        return failing();
    if (!strcmp(way, "filtered"))
        return filtered();
    if (!strcmp(way, "hidden"))
        return hidden();
    if (!strcmp(way, "old"))
        return old();
    if (!strcmp(way, "ring"))
        return ring();
    if (!strcmp(way, "alarmed"))
        return alarmed();
    return 111;
}

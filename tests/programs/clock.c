/* Runs a program whose time of day somebody else can step.
 *
 *   clock FILE COMMAND…
 *
 * FILE holds seconds, a 64-bit number, which are added to what clock_gettime(2) tells
 * COMMAND of CLOCK_REALTIME; other clocks, and the programs that COMMAND executes, have
 * the machine's time. No namespace gives a time of day to one job: here the vDSO is
 * hidden from COMMAND, so that it asks the kernel, and the call is answered from
 * outside (seccomp_unotify(2)). Ends as COMMAND does. */

#define _GNU_SOURCE
#include <elf.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static int listener, step;

static void fail(const char *what) {
    perror(what);
    _exit(125);
}

/* The filter's listener, for the process at the other end of `socket`. */
static void hand_over(int socket) {
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clock_gettime, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, CLOCK_REALTIME, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)) fail("no_new_privs");
    int made = (int)syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER,
                            SECCOMP_FILTER_FLAG_NEW_LISTENER, &program);
    if (made < 0) fail("seccomp");
    char byte = 0, control[CMSG_SPACE(sizeof made)] = {0};
    struct iovec data = {&byte, 1};
    struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1, .msg_control = control,
                             .msg_controllen = sizeof control};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    *header = (struct cmsghdr){CMSG_LEN(sizeof made), SOL_SOCKET, SCM_RIGHTS};
    memcpy(CMSG_DATA(header), &made, sizeof made);
    if (sendmsg(socket, &message, 0) != 1) fail("sendmsg");
    close(made);
}

static int take_over(int socket) {
    char byte, control[CMSG_SPACE(sizeof(int))];
    struct iovec data = {&byte, 1};
    struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1, .msg_control = control,
                             .msg_controllen = sizeof control};
    int taken;
    if (recvmsg(socket, &message, MSG_CMSG_CLOEXEC) != 1) _exit(125);
    memcpy(&taken, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof taken);
    return taken;
}

/* The C library takes the vDSO from the auxiliary vector, which lies behind the
 * arguments and the environment at the start of the stack (proc_pid_stat(5), 28). */
static void hide_vdso(pid_t pid) {
    char path[64], text[4096];
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    int stat = open(path, O_RDONLY);
    ssize_t length = read(stat, text, sizeof text - 1);
    text[length < 0 ? 0 : length] = 0;
    char *word = strrchr(text, ')');
    for (int field = 2; word && field < 28; field++) word = strchr(word + 1, ' ');
    if (!word) fail(path);
    off_t at = (off_t)strtoull(word, NULL, 10) + sizeof(long);
    snprintf(path, sizeof path, "/proc/%d/mem", pid);
    int memory = open(path, O_RDWR);
    unsigned long value;
    for (int lists = 0; lists < 2; at += sizeof value) {
        if (pread(memory, &value, sizeof value, at) != sizeof value) fail(path);
        lists += !value;
    }
    for (unsigned long entry[2];; at += sizeof entry) {
        if (pread(memory, entry, sizeof entry, at) != sizeof entry) fail(path);
        if (entry[0] == AT_NULL) fail("no vDSO");
        if (entry[0] != AT_SYSINFO_EHDR) continue;
        entry[0] = AT_IGNORE;
        if (pwrite(memory, entry, sizeof entry, at) != sizeof entry) fail(path);
        break;
    }
    close(memory);
    close(stat);
}

static void *answer(void *nothing) {
    for (;;) {
        struct seccomp_notif asked = {0};
        if (ioctl(listener, SECCOMP_IOCTL_NOTIF_RECV, &asked)) continue;
        struct timespec now;
        long long seconds = 0;
        clock_gettime(CLOCK_REALTIME, &now);
        if (pread(step, &seconds, sizeof seconds, 0) == sizeof seconds) now.tv_sec += seconds;
        struct iovec ours = {&now, sizeof now};
        struct iovec theirs = {(void *)asked.data.args[1], sizeof now};
        ssize_t written = process_vm_writev((pid_t)asked.pid, &ours, 1, &theirs, 1, 0);
        struct seccomp_notif_resp reply = {.id = asked.id};
        if (written != sizeof now) reply.flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE;
        ioctl(listener, SECCOMP_IOCTL_NOTIF_SEND, &reply);
    }
    return nothing;
}

int main(int count, char **argv) {
    int sockets[2], status;
    if (count < 3 || (step = open(argv[1], O_RDONLY | O_CLOEXEC)) < 0) fail("clock FILE COMMAND…");
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets)) fail("socketpair");
    pid_t pid = fork();
    if (pid == 0) {
        hand_over(sockets[1]);
        ptrace(PTRACE_TRACEME, 0, NULL, NULL);
        execvp(argv[2], argv + 2);
        fail(argv[2]);
    }
    close(sockets[1]);
    listener = take_over(sockets[0]);
    /* Stopped in its execve. */
    if (waitpid(pid, &status, 0) != pid || !WIFSTOPPED(status)) return 125;
    hide_vdso(pid);
    ptrace(PTRACE_DETACH, pid, NULL, NULL);
    pthread_t thread;
    if (pthread_create(&thread, NULL, answer, NULL)) return 125;
    waitpid(pid, &status, 0);
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

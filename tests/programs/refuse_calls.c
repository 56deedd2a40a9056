/* Runs a program as on an older kernel, or below an older container runtime.
 *
 *   refuse_calls ENOSYS|EPERM FIRST[,ALSO…] COMMAND…
 *
 * Every system call from number FIRST on, and those of the numbers after it, is answered
 * with the error (seccomp; inherited by all that COMMAND starts). System calls are numbered
 * in the order in which Linux got them, so FIRST stands for a version:
 *   314 (x86_64)  Linux 3.10: CentOS 7
 *   335 (x86_64)  Linux 4.18: RHEL 8, and 4.19
 *   424           Linux 5.0: no pidfd at all; with EPERM also Docker before 20.10 */

#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#define MOST 16
#define STATEMENT(code, value) ((struct sock_filter){code, 0, 0, value})

int main(int argc, char **argv) {
    if (argc < 4) return 2;
    unsigned answer = SECCOMP_RET_ERRNO | (strcmp(argv[1], "EPERM") ? ENOSYS : EPERM);
    struct sock_filter filter[2 * MOST + 4];
    unsigned short length = 0;
    filter[length++] = STATEMENT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
    unsigned test = BPF_JGE;
    for (char *word = strtok(argv[2], ","); word && length < 2 * MOST; word = strtok(NULL, ",")) {
        filter[length++] = (struct sock_filter){BPF_JMP | test | BPF_K, 0, 1, strtoul(word, NULL, 10)};
        filter[length++] = STATEMENT(BPF_RET | BPF_K, answer);
        test = BPF_JEQ;
    }
    filter[length++] = STATEMENT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    struct sock_fprog program = {.len = length, .filter = filter};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)) {
        perror("refuse_calls: seccomp");
        return 2;
    }
    execvp(argv[3], argv + 3);
    perror(argv[3]);
    return 2;
}

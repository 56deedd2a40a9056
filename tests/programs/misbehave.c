/* A rank that leaves processes behind in every way that Linux has.
 *
 *   misbehave MODE [ARGS…]
 *
 * Static and without a shell, so that it also runs in an empty container.
 * Nothing here lives for ever: every process has an alarm, so that a negative
 * control leaves nothing for good. */

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define LIFETIME 90

extern char **environ;

static void say(const char *text) {
    if (write(1, text, strlen(text)) < 0) _exit(70);
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

static void stay(void) {
    for (;;) pause();
}

/* Forks a child that lives as long as it is let. */
static pid_t child(void) {
    pid_t pid = fork();
    if (pid < 0) { perror("fork"); _exit(71); }
    if (pid == 0) alarm(LIFETIME);
    return pid;
}

static void *forever(void *nothing) {
    (void)nothing;
    stay();
    return NULL;
}

/* Everything that a test must find gone. Each escapee closes its end of the
 * pipe when it has become what it is. */
static void escape(char **argv) {
    int ready[2];
    if (pipe(ready)) _exit(72);
    if (!child()) { setsid(); close(ready[0]); close(ready[1]); stay(); }
    /* Double fork: the parent is gone, the daemon has its own session and no terminal. */
    if (!child()) {
        setsid();
        if (!child()) { close(ready[0]); close(ready[1]); close(0); close(1); close(2); stay(); }
        _exit(0);
    }
    /* No environment, hence no mark; its close-on-exec pipe end tells of the exec. */
    if (!child()) {
        setsid();
        close(ready[0]);
        fcntl(ready[1], F_SETFD, FD_CLOEXEC);
        char *arguments[] = {"misbehave", "sleep", NULL}, *nothing[] = {NULL};
        execve("/proc/self/exe", arguments, nothing);
        _exit(73);
    }
    /* A title over arguments and environment, as setproctitle writes it. */
    if (!child()) {
        char *from = argv[0], *to = from;
        for (char **each = argv; *each; each++) to = *each + strlen(*each);
        for (char **each = environ; *each; each++) to = *each + strlen(*each);
        memset(from, 'x', to - from);
        prctl(PR_SET_NAME, "retitled", 0, 0, 0);
        close(ready[0]); close(ready[1]);
        stay();
    }
    if (!child()) {
        for (int number = 1; number < 32; number++) signal(number, SIG_IGN);
        close(ready[0]); close(ready[1]);
        stay();
    }
    if (!child()) { setsid(); close(ready[0]); close(ready[1]); for (;;) raise(SIGSTOP); }
    /* Its first thread has ended: the kernel shows the process as a zombie. */
    if (!child()) {
        setsid();
        pthread_t thread;
        if (pthread_create(&thread, NULL, forever, NULL)) _exit(74);
        close(ready[0]); close(ready[1]);
        pthread_exit(NULL);
    }
    close(ready[1]);
    char byte;
    while (read(ready[0], &byte, 1) < 0 && errno == EINTR) {}
    close(ready[0]);
}

static volatile sig_atomic_t told;

static void tell(int number) {
    (void)number;
    told = 1;
}

/* Needs its helpers until it has saved. */
static void save(const char *folder, const char *rank) {
    usleep(50000);
    if (waitpid(-1, NULL, WNOHANG) != 0) _exit(80);
    char path[4096];
    snprintf(path, sizeof path, "%s/saved-%s", folder, rank);
    if (open(path, O_WRONLY | O_CREAT, 0644) < 0) _exit(81);
    _exit(0);
}

/* number FOLDER LINES PAUSE WHO=CODE [HELPERS]: numbered lines, PAUSE microseconds between two.
 * The bytes that the pipe has taken stand in FOLDER/bytes-RANK, also of one that is
 * killed. After LINES of them rank WHO ends with CODE (`all`: every rank), the others
 * go on without an end. With HELPERS processes beside it a rank saves when it gets TERM. */
static void number(char **argv) {
    /* On a busy machine a job may take minutes until its fault. */
    alarm(5 * LIFETIME);
    const char *rank = getenv("RANK");
    if (!rank) rank = getenv("NODE_RANK");
    /* accelerate tells the only one nothing. */
    if (!rank) rank = "0";
    char path[4096], line[256];
    snprintf(path, sizeof path, "%s/bytes-%s", argv[2], rank);
    int file = open(path, O_RDWR | O_CREAT | O_TRUNC, 0644);
    if (file < 0 || ftruncate(file, sizeof(long))) _exit(76);
    volatile long *taken = mmap(NULL, sizeof(long), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (taken == MAP_FAILED) _exit(77);
    long lines = atol(argv[3]), pause = atol(argv[4]);
    const char *code = strchr(argv[5], '=');
    if (!code) _exit(78);
    size_t name = (size_t)(code - argv[5]);
    int ends = !strncmp(argv[5], "all", 3) ||
               (strlen(rank) == name && !strncmp(argv[5], rank, name));
    long helpers = argv[6] ? atol(argv[6]) : 0;
    for (long helper = 0; helper < helpers; helper++)
        if (!child()) stay();
    if (helpers) signal(SIGTERM, tell);
    for (long at = 0; !ends || at < lines; at++) {
        if (told) save(argv[2], rank);
        int length = snprintf(line, sizeof line, "rank %s line %ld %.*s\n", rank, at,
                              (int)(at * 7 % 120), "................................"
                              "................................................"
                              "................................................");
        ssize_t done = write(1, line, (size_t)length);
        if (done > 0) *taken += done;
        if (pause) usleep((useconds_t)pause);
    }
    _exit(atoi(code + 1));
}

/* A chain of processes, each gone as soon as its successor is there. */
static void hydra(void) {
    double end = now() + 25;
    setsid();
    while (now() < end) if (fork() > 0) _exit(0);
    _exit(0);
}

/* Every process forks as fast as it can, up to a number of them that the machine bears. */
static void bomb(void) {
    double end = now() + 25;
    int *left = mmap(NULL, sizeof *left, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (left == MAP_FAILED) _exit(72);
    *left = 1500;
    while (now() < end) {
        if (__atomic_fetch_sub(left, 1, __ATOMIC_SEQ_CST) <= 0) stay();
        pid_t pid = fork();
        if (pid == 0) { alarm(LIFETIME); setsid(); }
        usleep(3000);
    }
    _exit(0);
}

/* N grandchildren lose their parents and then end all at once. */
static void orphans(int count) {
    int hold[2];
    if (pipe(hold)) _exit(72);
    for (int made = 0; made < count;) {
        int batch = count - made < 500 ? count - made : 500;
        pid_t between = fork();
        if (between < 0) { perror("fork"); _exit(71); }
        if (between == 0) {
            for (int one = 0; one < batch; one++) {
                pid_t pid = fork();
                if (pid < 0) { perror("fork"); _exit(71); }
                if (pid == 0) {
                    char byte;
                    close(hold[1]);
                    while (read(hold[0], &byte, 1) < 0 && errno == EINTR) {}
                    _exit(0);
                }
            }
            _exit(0);
        }
        int status;
        waitpid(between, &status, 0);
        if (status) _exit(75);
        made += batch;
    }
    say("READY\n");
    close(hold[0]);
    close(hold[1]);
}

/* Runs PROGRAM as another supervisor would: every orphan of it comes to us. What
 * is there when PROGRAM has ended goes to the report: at once, and after PATIENCE
 * seconds at the latest, with the time until nothing was left. */
static int living(const char *self, FILE *list) {
    char path[64], line[65536];
    int found = 0;
    (void)self;
    while (waitpid(-1, NULL, WNOHANG) > 0) {}
    snprintf(path, sizeof path, "/proc/self/task/%d/children", getpid());
    FILE *children = fopen(path, "r");
    if (!children) _exit(76);
    if (fgets(line, sizeof line, children))
        for (char *word = strtok(line, " \n"); word; word = strtok(NULL, " \n")) {
            found++;
            if (list) fprintf(list, " %s", word);
        }
    fclose(children);
    return found;
}

static int subreaper(const char *report, double patience, char **program) {
    prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
    pid_t pid = fork();
    if (pid == 0) { execvp(program[0], program); _exit(127); }
    int status = 0;
    for (;;) {
        siginfo_t info = {0};
        if (waitid(P_ALL, 0, &info, WEXITED | WNOWAIT)) _exit(77);
        int each;
        waitpid(info.si_pid, &each, 0);
        if (info.si_pid == pid) { status = each; break; }
    }
    double ended = now();
    FILE *file = fopen(report, "w");
    if (!file) _exit(78);
    fprintf(file, "at-once %d pids", living(report, NULL));
    living(report, file);
    int left;
    while ((left = living(report, NULL)) && now() - ended < patience) usleep(1000);
    fprintf(file, "\nafter %d seconds %.3f\n", left, now() - ended);
    fclose(file);
    /* Whatever the verdict, nothing stays on the machine. */
    for (double end = now() + 10; living(report, NULL) && now() < end;) {
        char path[64], line[65536];
        snprintf(path, sizeof path, "/proc/self/task/%d/children", getpid());
        FILE *children = fopen(path, "r");
        if (fgets(line, sizeof line, children))
            for (char *word = strtok(line, " \n"); word; word = strtok(NULL, " \n"))
                kill(atoi(word), SIGKILL);
        fclose(children);
    }
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

int main(int count, char **argv) {
    const char *mode = count > 1 ? argv[1] : "";
    const char *more = count > 2 ? argv[2] : "";
    alarm(LIFETIME);
    if (!strcmp(mode, "sleep")) stay();
    if (!strcmp(mode, "exit")) _exit(atoi(more));
    if (!strcmp(mode, "wait")) { say("READY\n"); stay(); }
    /* So many MiB in use, and no more. */
    if (!strcmp(mode, "hold-memory")) {
        size_t bytes = (size_t)atoi(more) << 20;
        char *block = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (block == MAP_FAILED) _exit(71);
        memset(block, 1, bytes);
        say("READY\n");
        stay();
    }
    if (!strcmp(mode, "escape")) { escape(argv); say("READY\n"); stay(); }
    /* Escapees, then an end with the code that is asked for. */
    if (!strcmp(mode, "escape-and-exit")) { escape(argv); say("READY\n"); _exit(atoi(more)); }
    /* Data loaders: blocked in a pipe that nobody reads, while their rank crashes. */
    if (!strcmp(mode, "loader")) {
        static char block[1 << 20];
        int queue[2], told[2];
        if (pipe(queue) || pipe(told)) _exit(72);
        for (int worker = 0; worker < 4; worker++)
            if (!child()) {
                close(told[0]);
                close(told[1]);
                for (;;) if (write(queue[1], block, sizeof block) < 0) _exit(0);
            }
        close(told[1]);
        char byte;
        while (read(told[0], &byte, 1) < 0 && errno == EINTR) {}
        say("READY\n");
        raise(SIGABRT);
    }
    /* Keeps our stdout open and ignores TERM, after its rank has ended with a code. */
    if (!strcmp(mode, "hold-stdout")) {
        signal(SIGTERM, SIG_IGN);
        if (!child()) { setsid(); stay(); }
        say("READY\n");
        _exit(atoi(more));
    }
    /* An upload that goes on after the rank's success and needs a second after TERM. */
    if (!strcmp(mode, "upload")) {
        sigset_t term;
        sigemptyset(&term);
        sigaddset(&term, SIGTERM);
        sigprocmask(SIG_BLOCK, &term, NULL);
        if (!child()) {
            int number;
            setsid();
            sigwait(&term, &number);
            usleep(1000000);
            int file = open(more, O_WRONLY | O_CREAT | O_TRUNC, 0644);
            if (file < 0 || write(file, "whole\n", 6) != 6) _exit(79);
            _exit(0);
        }
        say("READY\n");
        _exit(count > 3 ? atoi(argv[3]) : 0);
    }
    if (!strcmp(mode, "orphans")) { orphans(atoi(more)); stay(); }
    if (!strcmp(mode, "hydra")) { say("READY\n"); if (!fork()) hydra(); stay(); }
    if (!strcmp(mode, "bomb")) { say("READY\n"); bomb(); }
    /* Says how often TERM came, and ends TIME milliseconds after the first. */
    if (!strcmp(mode, "checkpoint")) {
        sigset_t term;
        sigemptyset(&term);
        sigaddset(&term, SIGTERM);
        sigprocmask(SIG_BLOCK, &term, NULL);
        say("READY\n");
        int number;
        sigwait(&term, &number);
        usleep(atoi(more) * 1000);
        say("SAVED\n");
        _exit(0);
    }
    /* Under hidepid nobody but root sees it; neither it nor its daemon has our mark. */
    if (!strcmp(mode, "hidden")) {
        int ready[2], number;
        char byte;
        sigset_t term;
        if (pipe(ready)) _exit(72);
        if (!child()) {
            setsid();
            if (child()) _exit(0);
            close(ready[0]);
            fcntl(ready[1], F_SETFD, FD_CLOEXEC);
            char *arguments[] = {"misbehave", "sleep", NULL}, *nothing[] = {NULL};
            execve("/proc/self/exe", arguments, nothing);
            _exit(73);
        }
        close(ready[1]);
        while (read(ready[0], &byte, 1) < 0 && errno == EINTR) {}
        prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
        sigemptyset(&term);
        sigaddset(&term, SIGTERM);
        sigprocmask(SIG_BLOCK, &term, NULL);
        say("READY\n");
        sigwait(&term, &number);
        say("SAVED\n");
        _exit(0);
    }
    if (!strcmp(mode, "ignore")) {
        for (int number = 1; number < 32; number++) signal(number, SIG_IGN);
        say("READY\n");
        for (;;) pause();
    }
    /* Ends with CODE once FILE is there. */
    if (!strcmp(mode, "until")) {
        say("READY\n");
        while (access(more, F_OK)) usleep(5000);
        _exit(count > 3 ? atoi(argv[3]) : 0);
    }
    /* Owned by root with the set-user-ID bit: nobody but root may signal it. */
    if (!strcmp(mode, "become-root") || !strcmp(mode, "fail-beside-root")) {
        const char *rank = getenv("RANK");
        if (rank && !strcmp(rank, "1") && mode[0] == 'f') {
            say("READY\n");
            while (access("is-root", F_OK)) usleep(5000);
            _exit(9);
        }
        if (setresuid(0, 0, 0)) { say("NO-ROOT\n"); _exit(3); }
        prctl(PR_SET_DUMPABLE, 1, 0, 0, 0);
        say("READY\n");
        close(open("is-root", O_WRONLY | O_CREAT, 0644));
        stay();
    }
    /* Rank 1 fails as soon as rank 0 is there, which does not listen. */
    if (!strcmp(mode, "fail-rank-1")) {
        const char *rank = getenv("RANK");
        for (int number = 1; number < 32; number++) signal(number, SIG_IGN);
        say("READY\n");
        if (!rank || strcmp(rank, "1")) {
            close(open("here", O_WRONLY | O_CREAT, 0644));
            stay();
        }
        while (unlink("here")) usleep(5000);
        _exit(9);
    }
    /* The first time: leaves escapees and fails once FILE 2 is there. Then it stays. */
    if (!strcmp(mode, "fail-once") && count > 3) {
        int file = open(more, O_RDWR | O_CREAT | O_EXCL, 0644);
        if (file < 0) { say("AGAIN\n"); stay(); }
        escape(argv);
        say("READY\n");
        while (access(argv[3], F_OK)) usleep(5000);
        _exit(9);
    }
    /* Fails until it has been started more often than FILE is long. */
    if (!strcmp(mode, "fail-times")) {
        int file = open(more, O_RDWR | O_CREAT | O_APPEND, 0644);
        if (file < 0) _exit(79);
        off_t times = lseek(file, 0, SEEK_END);
        if (write(file, ".", 1) != 1) _exit(79);
        escape(argv);
        say("READY\n");
        int wanted = count > 3 ? atoi(argv[3]) : 1;
        _exit(times < wanted ? 10 + (int)times : 0);
    }
    if (!strcmp(mode, "number") && count > 5) number(argv);
    if (!strcmp(mode, "subreaper") && count > 4) return subreaper(more, atof(argv[3]), argv + 4);
    fprintf(stderr, "unknown: %s\n", mode);
    return 64;
}

/* NVML of a driver that hangs: its first call opens $STUCK_DRIVER, a file on a dead
 * mount, and waits where no signal ends that. */

#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

static int hang(void) {
    const char *path = getenv("STUCK_DRIVER");
    if (path) open(path, O_RDONLY);
    sleep(60);
    return 999;
}

int nvmlInit(void) { return hang(); }
int nvmlInit_v2(void) { return hang(); }
int nvmlInitWithFlags(unsigned flags) { (void)flags; return hang(); }
int nvmlShutdown(void) { return 0; }

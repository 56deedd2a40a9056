/* A preloaded library that prints in every process that it is loaded into, as
 * those do that virtualise GPUs. Loaded by LD_PRELOAD it writes on descriptor 0 as
 * well, where the probe answers: the probe must not inherit that. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

__attribute__((constructor)) static void begin(void)
{
    const char *line = "[noise Info(1:2)] Initializing.....\n";
    for (int descriptor = getenv("LD_PRELOAD") ? 0 : 1; descriptor < 3; descriptor++)
        if (write(descriptor, line, strlen(line)) < 0)
            continue;
}

/* A preloaded library that prints in every process that it is loaded into, as
 * those do that virtualise GPUs. */
#include <string.h>
#include <unistd.h>

__attribute__((constructor)) static void begin(void)
{
    const char *line = "[noise Info(1:2)] Initializing.....\n";
    for (int descriptor = 1; descriptor < 3; descriptor++)
        if (write(descriptor, line, strlen(line)) < 0)
            continue;
}

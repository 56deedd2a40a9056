/* A libnvidia-ml.so.1 without a driver, for tests.
 *
 * It behaves as the real library does where a launcher looks: return codes,
 * struct versions, buffer sizes, one handle per GPU. What it plays is said by
 * variables, or by lines NAME=value of the file <this library>.conf, so that
 * several tests can play at once:
 *
 *   FAKE_NVML_MODE      ok, lost, reset-required, sick (calls of one GPU fail),
 *                       mismatch, not-loaded, access, unknown, hang, crash,
 *                       exit, slow, noise, mig, recovery, fabric
 *   FAKE_NVML_GPUS      how many (8)
 *   FAKE_NVML_BAD       index of the GPU that is lost, needs a reset… (0)
 *   FAKE_NVML_NAME      product name
 *   FAKE_NVML_MEMORY    MiB of each GPU (81559)
 *   FAKE_NVML_USED      MiB used, one number per GPU, comma-separated (0)
 *   FAKE_NVML_DRIVER    driver version (570.86.15)
 *   FAKE_NVML_SLOW_MS   how long slow takes (200)
 *
 * cc -shared -fPIC -o libnvidia-ml.so.1 nvml.c -ldl; with -DOLD_DRIVER the calls
 * that old drivers lack are missing, with -DNO_INIT the entry point itself.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

typedef unsigned int code_t;
enum {
    SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3,
    INSUFFICIENT_SIZE = 7, DRIVER_NOT_LOADED = 9, GPU_IS_LOST = 15,
    RESET_REQUIRED = 16, OPERATING_SYSTEM = 17, LIB_RM_VERSION_MISMATCH = 18,
    ARGUMENT_VERSION_MISMATCH = 25, UNKNOWN = 999
};

#define MIB (1ULL << 20)
#define MOST 64

typedef struct { unsigned index; } gpu_t;
static gpu_t gpus[MOST];
static int initialised;
static char settings[4096];

static const char *setting(const char *name, const char *otherwise)
{
    static char values[16][256];
    static int next;
    const char *value = getenv(name);
    if (value)
        return value;
    if (!settings[0]) {
        Dl_info info;
        char path[1024];
        FILE *file;
        strcpy(settings, "\n");
        if (dladdr((void *)setting, &info) && info.dli_fname) {
            snprintf(path, sizeof path, "%s.conf", info.dli_fname);
            file = fopen(path, "re");
            if (file) {
                size_t length = fread(settings + 1, 1, sizeof settings - 2, file);
                settings[1 + length] = 0;
                fclose(file);
            }
        }
    }
    char wanted[128];
    snprintf(wanted, sizeof wanted, "\n%s=", name);
    const char *found = strstr(settings, wanted);
    if (!found)
        return otherwise;
    found += strlen(wanted);
    char *copy = values[next++ % 16];
    snprintf(copy, sizeof values[0], "%.*s", (int)strcspn(found, "\n"), found);
    return copy;
}

static int mode(const char *name)
{
    return strcmp(setting("FAKE_NVML_MODE", "ok"), name) == 0;
}

static unsigned count(void)
{
    unsigned number = (unsigned)atoi(setting("FAKE_NVML_GPUS", "8"));
    return number < MOST ? number : MOST;
}

static int is_bad(unsigned index)
{
    return index == (unsigned)atoi(setting("FAKE_NVML_BAD", "0"));
}

static code_t copy(char *to, unsigned room, const char *text)
{
    if (!to)
        return INVALID_ARGUMENT;
    if (strlen(text) + 1 > room)
        return INSUFFICIENT_SIZE;
    strcpy(to, text);
    return SUCCESS;
}

/* Whether a handle is one of ours and its GPU answers. */
static code_t usable(const gpu_t *gpu)
{
    if (!initialised)
        return UNINITIALIZED;
    if (gpu < gpus || gpu >= gpus + count())
        return INVALID_ARGUMENT;
    if (mode("sick") && is_bad(gpu->index))
        return GPU_IS_LOST;
    return SUCCESS;
}

#define CHECK(gpu)                    \
    do {                              \
        code_t code_ = usable(gpu);   \
        if (code_ != SUCCESS)         \
            return code_;             \
    } while (0)

static code_t start(void)
{
    if (mode("mismatch"))
        return LIB_RM_VERSION_MISMATCH;
    if (mode("not-loaded"))
        return DRIVER_NOT_LOADED;
    if (mode("access"))
        return OPERATING_SYSTEM;
    if (mode("unknown"))
        return UNKNOWN;
    if (mode("hang"))
        for (;;)
            pause();
    if (mode("crash")) {
        signal(SIGSEGV, SIG_DFL);
        raise(SIGSEGV);
    }
    if (mode("exit")) {
        fprintf(stderr, "fake nvml: giving up\n");
        exit(3);
    }
    if (mode("slow")) {
        long ms = atol(setting("FAKE_NVML_SLOW_MS", "200"));
        struct timespec pause_for = { ms / 1000, ms % 1000 * 1000000 };
        nanosleep(&pause_for, NULL);
    }
    if (mode("noise")) {
        /* More than a pipe holds, and on the descriptor of the answer too. */
        char line[1024];
        memset(line, 'x', sizeof line);
        for (int i = 0; i < 512; i++) {
            fwrite(line, 1, sizeof line, stdout);
            fwrite(line, 1, sizeof line, stderr);
        }
        fflush(stdout);
        if (write(0, "{}", 2) < 0)
            fprintf(stderr, "fake nvml: standard input is not for writing\n");
    }
    for (unsigned i = 0; i < MOST; i++)
        gpus[i].index = i;
    initialised = 1;
    return SUCCESS;
}

#ifndef NO_INIT
code_t nvmlInit_v2(void) { return start(); }
#endif
code_t nvmlInit(void) { return start(); }

/* The real one can hang on a sick node, so nobody should call it. */
code_t nvmlShutdown(void)
{
    fprintf(stderr, "fake nvml: nvmlShutdown was called\n");
    abort();
}

code_t nvmlSystemGetDriverVersion(char *version, unsigned length)
{
    if (!initialised)
        return UNINITIALIZED;
    return copy(version, length, setting("FAKE_NVML_DRIVER", "570.86.15"));
}

code_t nvmlSystemGetCudaDriverVersion_v2(int *version)
{
    if (!version)
        return INVALID_ARGUMENT;
    *version = 12080;
    return SUCCESS;
}

code_t nvmlDeviceGetCount_v2(unsigned *number)
{
    if (!initialised)
        return UNINITIALIZED;
    if (!number)
        return INVALID_ARGUMENT;
    *number = count();
    return SUCCESS;
}

code_t nvmlDeviceGetHandleByIndex_v2(unsigned index, gpu_t **gpu)
{
    if (!initialised)
        return UNINITIALIZED;
    if (index >= count() || !gpu)
        return INVALID_ARGUMENT;
    if (mode("lost") && is_bad(index))
        return GPU_IS_LOST;
    if (mode("reset-required") && is_bad(index))
        return RESET_REQUIRED;
    *gpu = &gpus[index];
    return SUCCESS;
}

code_t nvmlDeviceGetUUID(gpu_t *gpu, char *uuid, unsigned length)
{
    char text[64];
    CHECK(gpu);
    snprintf(text, sizeof text, "GPU-%08x-0000-4000-8000-00000000%04x", 0xfa4e0000u + gpu->index,
             gpu->index);
    return copy(uuid, length, text);
}

code_t nvmlDeviceGetName(gpu_t *gpu, char *name, unsigned length)
{
    CHECK(gpu);
    return copy(name, length, setting("FAKE_NVML_NAME", "NVIDIA H100 80GB HBM3"));
}

typedef struct {
    char bus_id_legacy[16];
    unsigned domain, bus, device, pci_device_id, pci_subsystem_id;
    char bus_id[32];
} pci_t;

code_t nvmlDeviceGetPciInfo_v3(gpu_t *gpu, pci_t *pci)
{
    CHECK(gpu);
    if (!pci)
        return INVALID_ARGUMENT;
    memset(pci, 0, sizeof *pci);
    pci->bus = 0x18 + gpu->index * 0x10;
    pci->pci_device_id = 0x233010de;
    snprintf(pci->bus_id, sizeof pci->bus_id, "00000000:%02X:00.0", pci->bus);
    snprintf(pci->bus_id_legacy, sizeof pci->bus_id_legacy, "0000:%02X:00.0", pci->bus);
    return SUCCESS;
}

code_t nvmlDeviceGetMinorNumber(gpu_t *gpu, unsigned *minor)
{
    CHECK(gpu);
    *minor = gpu->index;
    return SUCCESS;
}

static unsigned long long total_bytes(void)
{
    return strtoull(setting("FAKE_NVML_MEMORY", "81559"), NULL, 10) * MIB;
}

static unsigned long long used_bytes(unsigned index)
{
    const char *list = setting("FAKE_NVML_USED", "");
    for (; index > 0 && list; index--) {
        list = strchr(list, ',');
        if (list)
            list++;
    }
    return list ? strtoull(list, NULL, 10) * MIB : 0;
}

#define RESERVED (551 * MIB)

/* Version 1 counts the driver's reserve as used. */
code_t nvmlDeviceGetMemoryInfo(gpu_t *gpu, unsigned long long memory[3])
{
    CHECK(gpu);
    memory[0] = total_bytes();
    memory[2] = used_bytes(gpu->index) + RESERVED;
    memory[1] = memory[0] - memory[2];
    return SUCCESS;
}

#ifndef OLD_DRIVER
typedef struct {
    unsigned version;
    unsigned long long total, reserved, free, used;
} memory_v2_t;

code_t nvmlDeviceGetMemoryInfo_v2(gpu_t *gpu, memory_v2_t *memory)
{
    CHECK(gpu);
    if (!memory || memory->version != (sizeof *memory | 2u << 24))
        return ARGUMENT_VERSION_MISMATCH;
    memory->total = total_bytes();
    memory->reserved = RESERVED;
    memory->used = used_bytes(gpu->index);
    memory->free = memory->total - memory->reserved - memory->used;
    return SUCCESS;
}

code_t nvmlDeviceGetMigMode(gpu_t *gpu, unsigned *current, unsigned *pending)
{
    CHECK(gpu);
    *current = *pending = mode("mig");
    return SUCCESS;
}

typedef struct {
    unsigned field, scope;
    long long timestamp, latency;
    unsigned type;
    code_t code;
    union { unsigned u32; unsigned long long u64; double f64; } value;
} field_t;

code_t nvmlDeviceGetFieldValues(gpu_t *gpu, int number, field_t *fields)
{
    CHECK(gpu);
    for (int i = 0; i < number; i++) {
        fields[i].code = fields[i].field == 230 ? SUCCESS : NOT_SUPPORTED;
        fields[i].type = 1;
        fields[i].value.u64 = 0;
        fields[i].value.u32 = mode("recovery") && is_bad(gpu->index) ? 2 : 0;
    }
    return SUCCESS;
}

typedef struct {
    unsigned version;
    unsigned char cluster[16];
    code_t status;
    unsigned clique;
    unsigned char state;
    unsigned health;
} fabric_v2_t;

code_t nvmlDeviceGetGpuFabricInfoV(gpu_t *gpu, fabric_v2_t *fabric)
{
    CHECK(gpu);
    if (!fabric || fabric->version != (sizeof *fabric | 2u << 24))
        return ARGUMENT_VERSION_MISMATCH;
    fabric->status = SUCCESS;
    fabric->state = mode("fabric") && is_bad(gpu->index) ? 2 : 3;
    return SUCCESS;
}
#endif

const char *nvmlErrorString(code_t code)
{
    return code == SUCCESS ? "Success" : "fake error";
}

/* A libnvidia-ml.so.1 without a driver, for tests.
 *
 * It behaves as the real library does where a launcher looks: return codes,
 * struct versions, buffer sizes, one handle per GPU. What it plays is said by
 * variables, or by lines NAME=value of the file <this library>.conf, so that
 * several tests can play at once:
 *
 *   FAKE_NVML_MODE      ok, lost, reset-required, sick (calls of one GPU fail),
 *                       mismatch, not-loaded, access, unknown, hang, crash,
 *                       exit, slow, noise, mig, mig-empty, recovery, drain,
 *                       fabric, fabric-failed, fabric-degraded, ecc, remap,
 *                       remap-failed, retired, throttle, pcie-narrow,
 *                       nvlink-down, exclusive, prohibited, persistence-off,
 *                       not-supported and no-permission (what tells of health),
 *                       sandbox (unknown errors of all that is not needed),
 *                       handle-unknown, health-lost, health-hang, many-processes,
 *                       before-volta (no energy is counted)
 *   FAKE_NVML_GPUS      how many (8)
 *   FAKE_NVML_UTILIZATION   of each in per cent (97), or hang, or crash: what it is at
 *                       each call
 *   FAKE_NVML_BAD       index of the GPU that is lost, needs a reset… (0)
 *   FAKE_NVML_NAME      product name
 *   FAKE_NVML_MEMORY    MiB of each GPU (81559)
 *   FAKE_NVML_USED      MiB used, one number per GPU, comma-separated (0): what it is at
 *                       each call
 *   FAKE_NVML_DRIVER    driver version (570.86.15)
 *   FAKE_NVML_CUDA      CUDA version of the driver as NVML writes it (12080)
 *   FAKE_NVML_SLOW_MS   how long slow takes (200)
 *   FAKE_NVML_MINORS    numbers of the device nodes by index, separated by commas
 *   FAKE_NVML_NAMES     product names by index, separated by semicolons
 *   FAKE_NVML_POLLS     the fabric is complete once the library was initialised
 *                       so many times, counted in <this library>.polls
 *   FAKE_NVML_PIDS      a process of the bad GPU, with 1 GiB
 *   FAKE_NVML_REPLAYS   packets that PCIe and NVLink of the bad GPU sent again (0)
 *   FAKE_NVML_EVENTS    what becomes of who waits for events: ok, hang, crash,
 *                       lost (GPU_IS_LOST at each call), no-permission (of the
 *                       bad GPU), gone (no handle of the bad GPU any more)
 *
 * An event is a line "INDEX XID" of the file <this library>.events, which may
 * grow while somebody waits. Only registered GPUs have events.
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
    TIMEOUT = 10,
    SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3,
    NO_PERMISSION = 4, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7, DRIVER_NOT_LOADED = 9, GPU_IS_LOST = 15,
    RESET_REQUIRED = 16, OPERATING_SYSTEM = 17, LIB_RM_VERSION_MISMATCH = 18,
    ARGUMENT_VERSION_MISMATCH = 25, UNKNOWN = 999
};

#define MIB (1ULL << 20)
#define MOST 64

/* A GPU, or a MIG instance of one. */
typedef struct { unsigned index, place; } gpu_t;
static gpu_t gpus[MOST];
static gpu_t instances[2 * MOST];
static int initialised;
static char settings[4096];

static void read_settings(char into[static 4096])
{
    Dl_info info;
    char path[1024];
    FILE *file;
    strcpy(into, "\n");
    if (dladdr((void *)read_settings, &info) && info.dli_fname) {
        snprintf(path, sizeof path, "%s.conf", info.dli_fname);
        file = fopen(path, "re");
        if (file) {
            size_t length = fread(into + 1, 1, 4096 - 2, file);
            into[1 + length] = 0;
            fclose(file);
        }
    }
}

static const char *setting_of(const char *all, const char *name, const char *otherwise)
{
    static __thread char values[16][256];
    static __thread int next;
    const char *value = getenv(name);
    if (value)
        return value;
    char wanted[128];
    snprintf(wanted, sizeof wanted, "\n%s=", name);
    const char *found = strstr(all, wanted);
    if (!found)
        return otherwise;
    found += strlen(wanted);
    char *copy = values[next++ % 16];
    snprintf(copy, sizeof values[0], "%.*s", (int)strcspn(found, "\n"), found);
    return copy;
}

/* As it was when the library was initialised, before there are threads. */
static const char *setting(const char *name, const char *otherwise)
{
    if (!settings[0])
        read_settings(settings);
    return setting_of(settings, name, otherwise);
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

/* Once more initialised: how often that was, this time included. */
static unsigned initialisations;
static void count_initialisation(void)
{
    Dl_info info;
    char path[1024];
    if (atoi(setting("FAKE_NVML_POLLS", "0")) == 0)
        return;
    if (!dladdr((void *)setting, &info) || !info.dli_fname)
        return;
    snprintf(path, sizeof path, "%s.polls", info.dli_fname);
    FILE *file = fopen(path, "ae");
    if (file) {
        fputc('x', file);
        initialisations = (unsigned)ftell(file);
        fclose(file);
    }
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

static int is_instance(const gpu_t *gpu)
{
    return gpu >= instances && gpu < instances + 2 * MOST;
}

/* Whether a handle is one of ours and its GPU answers. */
static code_t usable(const gpu_t *gpu)
{
    if (!initialised)
        return UNINITIALIZED;
    if (is_instance(gpu))
        return SUCCESS;
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
    count_initialisation();
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
    *version = (int)strtoul(setting("FAKE_NVML_CUDA", "12080"), NULL, 10);
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
    if (mode("handle-unknown") && is_bad(index))
        return UNKNOWN;
    if (mode("reset-required") && is_bad(index))
        return RESET_REQUIRED;
    *gpu = &gpus[index];
    return SUCCESS;
}

code_t nvmlDeviceGetHandleByPciBusId_v2(const char *address, gpu_t **gpu)
{
    unsigned domain, bus, device;
    if (!initialised)
        return UNINITIALIZED;
    if (!address || sscanf(address, "%x:%x:%x.", &domain, &bus, &device) != 3)
        return INVALID_ARGUMENT;
    unsigned index = (bus - 0x18) / 0x10;
    if (bus < 0x18 || (bus - 0x18) % 0x10 || index >= count())
        return NOT_FOUND;
    if (!strcmp(setting("FAKE_NVML_EVENTS", "ok"), "gone") && is_bad(index))
        return GPU_IS_LOST;
    *gpu = &gpus[index];
    return SUCCESS;
}

code_t nvmlDeviceGetUUID(gpu_t *gpu, char *uuid, unsigned length)
{
    char text[64];
    CHECK(gpu);
    if (is_instance(gpu))
        snprintf(text, sizeof text, "MIG-%08x-0000-4000-8000-0000000000%02x",
                 0xfa4e0000u + gpu->index, gpu->place);
    else
        snprintf(text, sizeof text, "GPU-%08x-0000-4000-8000-00000000%04x", 0xfa4e0000u + gpu->index,
                 gpu->index);
    return copy(uuid, length, text);
}

code_t nvmlDeviceGetName(gpu_t *gpu, char *name, unsigned length)
{
    CHECK(gpu);
    const char *names = setting("FAKE_NVML_NAMES", NULL);
    if (names) {
        char one[96];
        for (unsigned i = 0; i < gpu->index && strchr(names, ';'); i++)
            names = strchr(names, ';') + 1;
        snprintf(one, sizeof one, "%.*s", (int)strcspn(names, ";"), names);
        return copy(name, length, one);
    }
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
    if (mode("sandbox"))
        return UNKNOWN;
    const char *list = setting("FAKE_NVML_MINORS", NULL);
    *minor = gpu->index;
    if (list) {
        for (unsigned i = 0; i < gpu->index && strchr(list, ','); i++)
            list = strchr(list, ',') + 1;
        *minor = (unsigned)atoi(list);
    }
    return SUCCESS;
}

static unsigned long long total_bytes(void)
{
    return strtoull(setting("FAKE_NVML_MEMORY", "81559"), NULL, 10) * MIB;
}

static unsigned long long used_bytes(unsigned index)
{
    char now[4096];
    read_settings(now);
    const char *list = setting_of(now, "FAKE_NVML_USED", "");
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
    memory->total = is_instance(gpu) ? 9856 * MIB : total_bytes();
    memory->reserved = RESERVED;
    memory->used = used_bytes(gpu->index);
    memory->free = memory->total - memory->reserved - memory->used;
    return SUCCESS;
}

code_t nvmlDeviceGetMigMode(gpu_t *gpu, unsigned *current, unsigned *pending)
{
    CHECK(gpu);
    if (mode("sandbox"))
        return UNKNOWN;
    *current = *pending = mode("mig") || mode("mig-empty");
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
        unsigned field = fields[i].field;
        /* PCIe replays; CRC errors, replays and recoveries of NVLink. */
        int counts = field == 94 || field == 45 || field == 52 || field == 59;
        fields[i].code = field == 230 || (counts && !mode("not-supported")) ? SUCCESS : NOT_SUPPORTED;
        fields[i].type = counts ? 3 : 1;
        if (counts) {
            int replays = is_bad(gpu->index) && (field == 94 || field == 52);
            fields[i].value.u64 = replays ? strtoull(setting("FAKE_NVML_REPLAYS", "0"), NULL, 10) : 0;
            continue;
        }
        fields[i].value.u64 = 0;
        fields[i].value.u32 = !is_bad(gpu->index) ? 0 : mode("recovery") ? 2 : mode("drain") ? 3 : 0;
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
    fabric->status = mode("fabric-failed") && is_bad(gpu->index) ? UNKNOWN : SUCCESS;
    fabric->state = 3;
    if (mode("fabric") && is_bad(gpu->index)) {
        unsigned polls = (unsigned)atoi(setting("FAKE_NVML_POLLS", "0"));
        fabric->state = polls && initialisations > polls ? 3 : 2;
    }
    /* Two bits each, 2 is "no". */
    fabric->health = mode("fabric-degraded") && is_bad(gpu->index) ? 0xa9 : 0xaa;
    return SUCCESS;
}

code_t nvmlDeviceGetMaxMigDeviceCount(gpu_t *gpu, unsigned *most)
{
    CHECK(gpu);
    *most = 7;
    return SUCCESS;
}

/* Two instances of each GPU, in places 0 and 2. */
code_t nvmlDeviceGetMigDeviceHandleByIndex(gpu_t *gpu, unsigned place, gpu_t **instance)
{
    CHECK(gpu);
    if (mode("mig-empty") || (place != 0 && place != 2))
        return NOT_FOUND;
    *instance = &instances[2 * gpu->index + place / 2];
    **instance = (gpu_t) { gpu->index, place };
    return SUCCESS;
}

code_t nvmlDeviceGetGpuInstanceId(gpu_t *instance, unsigned *id)
{
    *id = 7 + instance->place;
    return SUCCESS;
}

code_t nvmlDeviceGetComputeInstanceId(gpu_t *instance, unsigned *id)
{
    (void)instance;
    *id = 0;
    return SUCCESS;
}

/* What tells of health: how it fails in the modes that let all of it fail. */
static code_t health_code(const gpu_t *gpu)
{
    CHECK(gpu);
    if (mode("not-supported"))
        return NOT_SUPPORTED;
    if (mode("sandbox"))
        return UNKNOWN;
    if (mode("no-permission"))
        return NO_PERMISSION;
    if (mode("health-lost") && is_bad(gpu->index))
        return GPU_IS_LOST;
    if (mode("health-hang") && is_bad(gpu->index))
        for (;;)
            pause();
    return SUCCESS;
}

#define HEALTH(gpu)                       \
    do {                                  \
        code_t code_ = health_code(gpu);  \
        if (code_ != SUCCESS)             \
            return code_;                 \
    } while (0)

/* 1 for the bad GPU of this mode. */
static unsigned plays(const gpu_t *gpu, const char *name)
{
    return mode(name) && is_bad(gpu->index);
}

code_t nvmlDeviceGetEccMode(gpu_t *gpu, unsigned *current, unsigned *pending)
{
    HEALTH(gpu);
    *current = *pending = 1;
    return SUCCESS;
}

code_t nvmlDeviceGetTotalEccErrors(gpu_t *gpu, unsigned type, unsigned counter,
                                   unsigned long long *errors)
{
    HEALTH(gpu);
    if (type != 1 || counter > 1)
        return INVALID_ARGUMENT;
    *errors = plays(gpu, "ecc") ? (counter ? 9 : 2) : 0;
    return SUCCESS;
}

code_t nvmlDeviceGetRemappedRows(gpu_t *gpu, unsigned *correctable, unsigned *uncorrectable,
                                 unsigned *pending, unsigned *failed)
{
    HEALTH(gpu);
    *correctable = 1;
    *uncorrectable = plays(gpu, "remap") || plays(gpu, "remap-failed");
    *pending = plays(gpu, "remap");
    *failed = plays(gpu, "remap-failed");
    return SUCCESS;
}

code_t nvmlDeviceGetRetiredPagesPendingStatus(gpu_t *gpu, unsigned *pending)
{
    HEALTH(gpu);
    if (!mode("retired"))
        return NOT_SUPPORTED;
    *pending = plays(gpu, "retired");
    return SUCCESS;
}

/* An idle GPU (1), or hardware slowdown for heat. */
static code_t reasons(gpu_t *gpu, unsigned long long *reasons)
{
    HEALTH(gpu);
    *reasons = plays(gpu, "throttle") ? 0x8 | 0x40 : 0x1;
    return SUCCESS;
}
#ifndef OLD_NAMES
code_t nvmlDeviceGetCurrentClocksEventReasons(gpu_t *gpu, unsigned long long *r)
{
    return reasons(gpu, r);
}
#endif
code_t nvmlDeviceGetCurrentClocksThrottleReasons(gpu_t *gpu, unsigned long long *r)
{
    return reasons(gpu, r);
}

/* All GPUs work. One that is throttled does it slower and draws less. */
code_t nvmlDeviceGetUtilizationRates(gpu_t *gpu, unsigned rates[2])
{
    char now[4096];
    HEALTH(gpu);
    read_settings(now);
    const char *utilization = setting_of(now, "FAKE_NVML_UTILIZATION", "97");
    if (!strcmp(utilization, "hang"))
        for (;;)
            pause();
    if (!strcmp(utilization, "crash"))
        abort();
    rates[0] = (unsigned)atoi(utilization);
    rates[1] = 40;
    return SUCCESS;
}

code_t nvmlDeviceGetPowerUsage(gpu_t *gpu, unsigned *milliwatts)
{
    HEALTH(gpu);
    *milliwatts = plays(gpu, "throttle") ? 210000 : 640000;
    return SUCCESS;
}

code_t nvmlDeviceGetEnforcedPowerLimit(gpu_t *gpu, unsigned *milliwatts)
{
    HEALTH(gpu);
    *milliwatts = 700000;
    return SUCCESS;
}

/* Millijoules since the driver was loaded, at the power of now: of this machine's time, so that it
 * grows from one process to the next. */
code_t nvmlDeviceGetTotalEnergyConsumption(gpu_t *gpu, unsigned long long *millijoules)
{
    struct timespec now;
    unsigned milliwatts;
    HEALTH(gpu);
    if (is_instance(gpu) || mode("before-volta"))
        return NOT_SUPPORTED;
    if (!millijoules)
        return INVALID_ARGUMENT;
    if (clock_gettime(CLOCK_BOOTTIME, &now) || nvmlDeviceGetPowerUsage(gpu, &milliwatts))
        return UNKNOWN;
    *millijoules = milliwatts * (now.tv_sec * 1000ULL + now.tv_nsec / 1000000) / 1000;
    return SUCCESS;
}

code_t nvmlDeviceGetClockInfo(gpu_t *gpu, unsigned type, unsigned *mhz)
{
    HEALTH(gpu);
    if (type != 1)
        return INVALID_ARGUMENT;
    *mhz = plays(gpu, "throttle") ? 510 : 1755;
    return SUCCESS;
}

code_t nvmlDeviceGetMaxClockInfo(gpu_t *gpu, unsigned type, unsigned *mhz)
{
    HEALTH(gpu);
    if (type != 1)
        return INVALID_ARGUMENT;
    *mhz = 1980;
    return SUCCESS;
}

code_t nvmlDeviceGetTemperature(gpu_t *gpu, unsigned sensor, unsigned *celsius)
{
    HEALTH(gpu);
    *celsius = sensor == 0 ? 34 : 0;
    return SUCCESS;
}

code_t nvmlDeviceGetCurrPcieLinkWidth(gpu_t *gpu, unsigned *lanes)
{
    HEALTH(gpu);
    *lanes = plays(gpu, "pcie-narrow") ? 4 : 16;
    return SUCCESS;
}

code_t nvmlDeviceGetMaxPcieLinkWidth(gpu_t *gpu, unsigned *lanes)
{
    HEALTH(gpu);
    *lanes = 16;
    return SUCCESS;
}

/* An idle GPU saves power: not the generation that it can. */
code_t nvmlDeviceGetCurrPcieLinkGeneration(gpu_t *gpu, unsigned *generation)
{
    HEALTH(gpu);
    *generation = 1;
    return SUCCESS;
}

code_t nvmlDeviceGetMaxPcieLinkGeneration(gpu_t *gpu, unsigned *generation)
{
    HEALTH(gpu);
    *generation = 5;
    return SUCCESS;
}

code_t nvmlDeviceGetNvLinkState(gpu_t *gpu, unsigned link, unsigned *active)
{
    HEALTH(gpu);
    if (link >= 18)
        return INVALID_ARGUMENT;
    *active = !(plays(gpu, "nvlink-down") && link == 7);
    return SUCCESS;
}

code_t nvmlDeviceGetPersistenceMode(gpu_t *gpu, unsigned *on)
{
    HEALTH(gpu);
    *on = !mode("persistence-off");
    return SUCCESS;
}

code_t nvmlDeviceGetComputeMode(gpu_t *gpu, unsigned *compute)
{
    HEALTH(gpu);
    *compute = plays(gpu, "prohibited") ? 2 : plays(gpu, "exclusive") ? 3 : 0;
    return SUCCESS;
}

code_t nvmlDeviceGetVirtualizationMode(gpu_t *gpu, unsigned *virtualization)
{
    HEALTH(gpu);
    *virtualization = 0;
    return SUCCESS;
}

typedef struct {
    unsigned pid;
    unsigned long long memory;
    unsigned gpu_instance, compute_instance;
} process_t;

code_t nvmlDeviceGetComputeRunningProcesses_v3(gpu_t *gpu, unsigned *number, process_t *list)
{
    HEALTH(gpu);
    const char *pid = setting("FAKE_NVML_PIDS", NULL);
    unsigned wanted = plays(gpu, "many-processes") ? 4000000000u : pid && is_bad(gpu->index);
    if (wanted > *number) {
        *number = wanted;
        return INSUFFICIENT_SIZE;
    }
    *number = wanted;
    if (wanted) {
        process_t one = { (unsigned)atoi(pid), 1ULL << 30, ~0u, ~0u };
        list[0] = one;
    }
    return SUCCESS;
}

code_t nvmlDeviceGetGraphicsRunningProcesses_v3(gpu_t *gpu, unsigned *number, process_t *list)
{
    HEALTH(gpu);
    (void)list;
    *number = 0;
    return SUCCESS;
}

typedef struct { unsigned long long registered; long read; } event_set_t;
typedef struct {
    gpu_t *gpu;
    unsigned long long type, data;
    unsigned gpu_instance, compute_instance;
} event_t;

static int events(const char *name)
{
    return strcmp(setting("FAKE_NVML_EVENTS", "ok"), name) == 0;
}

code_t nvmlEventSetCreate(event_set_t **set)
{
    *set = calloc(1, sizeof **set);
    return *set ? SUCCESS : UNKNOWN;
}

code_t nvmlDeviceRegisterEvents(gpu_t *gpu, unsigned long long types, event_set_t *set)
{
    CHECK(gpu);
    if (types != 8 || !set)
        return INVALID_ARGUMENT;
    if (events("no-permission") && is_bad(gpu->index))
        return NO_PERMISSION;
    set->registered |= 1ULL << gpu->index;
    return SUCCESS;
}

/* The next event of a registered GPU; 0: none yet, or not written to its end. */
static int next_event(event_set_t *set, event_t *event)
{
    Dl_info info;
    char path[1024], line[64];
    unsigned index;
    int found = 0;
    if (!dladdr((void *)setting, &info) || !info.dli_fname)
        return 0;
    snprintf(path, sizeof path, "%s.events", info.dli_fname);
    FILE *file = fopen(path, "re");
    if (!file)
        return 0;
    fseek(file, set->read, SEEK_SET);
    while (!found && fgets(line, sizeof line, file) && strchr(line, '\n')) {
        set->read = ftell(file);
        found = sscanf(line, "%u %llu", &index, &event->data) == 2 && index < count()
            && set->registered >> index & 1;
        event->gpu = &gpus[index % MOST];
        event->type = 8;
    }
    fclose(file);
    return found;
}

code_t nvmlEventSetWait_v2(event_set_t *set, event_t *event, unsigned ms)
{
    struct timespec moment = { 0, 5000000 };
    if (events("hang"))
        for (;;)
            pause();
    if (events("crash")) {
        fprintf(stderr, "fake nvml: assertion failed\n");
        abort();
    }
    if (events("lost"))
        return GPU_IS_LOST;
    for (unsigned waited = 0; waited <= ms; waited += 5) {
        if (next_event(set, event))
            return SUCCESS;
        nanosleep(&moment, NULL);
    }
    return TIMEOUT;
}
#endif

const char *nvmlErrorString(code_t code)
{
    return code == SUCCESS ? "Success" : "fake error";
}

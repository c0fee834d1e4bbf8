/* A stand-in for NVIDIA's libnvidia-ml.so.1: as much of NVML's interface as nvidia-ml-py needs for ftslurm's checks,
 * driven by the text file that $NVML_STANDIN names. A line of it is one of
 *
 *   count N                     how many GPUs there are
 *   GPU KEY VALUE               a fact; GPU is a number or * for all, the last line that fits counts
 *   GPU error FUNCTION CODE     that function returns the code for that GPU; * as FUNCTION: every function
 *   GPU hang FUNCTION           that function never returns
 *   GPU delay FUNCTION MS       that function takes so long
 *   GPU field ID[/SCOPE] VALUE  a field value
 *   GPU process PID BYTES       a program on that GPU
 *   GPU mig-device UUID         a MIG device of it
 *   GPU links 1 1 0             state of its NVLinks
 *   events PATH                 a named pipe: lines "GPU XID" or "GPU ecc" that are written to it are events
 *
 * GPU for functions without one (nvmlInitWithFlags) is *. Compiled with -DOLD, it is a driver of 2019: what came later
 * is not there. */

#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { MOST = 64, LINES = 2048, LENGTH = 160 };
enum { SUCCESS = 0, INVALID = 2, UNSUPPORTED = 3, NOT_FOUND = 6, SMALL = 7, TIMEOUT = 10 };

struct gpu { int number; int mig; char uuid[LENGTH]; };
typedef struct gpu *device;

static char lines[LINES][LENGTH];
static int line_count;
static struct gpu devices[MOST];
#ifndef OLD
static struct gpu migs[MOST][8];
#endif

static void load(void)
{
    const char *path = getenv("NVML_STANDIN");
    FILE *file = path ? fopen(path, "r") : NULL;
    line_count = 0;
    while (file && line_count < LINES && fgets(lines[line_count], LENGTH, file)) {
        lines[line_count][strcspn(lines[line_count], "\n")] = 0;
        line_count++;
    }
    if (file) fclose(file);
    for (int i = 0; i < MOST; i++) {
        devices[i].number = i;
        devices[i].mig = -1;
    }
}

/* The rest of the line that fits GPU and key, the last one; NULL: none. `after` finds the lines before that one. */
static const char *line(int gpu, const char *key, int *after)
{
    for (int i = after && *after >= 0 ? *after - 1 : line_count - 1; i >= 0; i--) {
        char who[32];
        int used = 0;
        if (sscanf(lines[i], "%31s %n", who, &used) != 1 || (strcmp(who, "*") && atoi(who) != gpu)) continue;
        if (strcmp(who, "*") && (who[0] < '0' || who[0] > '9')) continue;
        const char *rest = lines[i] + used;
        size_t length = strlen(key);
        if (strncmp(rest, key, length) || (rest[length] && rest[length] != ' ')) continue;
        if (after) *after = i;
        rest += length;
        return *rest == ' ' ? rest + 1 : rest;
    }
    return NULL;
}

static const char *global(const char *key)
{
    size_t length = strlen(key);
    for (int i = line_count - 1; i >= 0; i--)
        if (!strncmp(lines[i], key, length) && lines[i][length] == ' ') return lines[i] + length + 1;
    return NULL;
}

static int number(int gpu, const char *key, long long *value)
{
    const char *found = line(gpu, key, NULL);
    if (!found) return UNSUPPORTED;
    *value = strtoll(found, NULL, 0);
    return SUCCESS;
}

static void text(int gpu, const char *key, const char *otherwise, char *into, unsigned length)
{
    const char *found = line(gpu, key, NULL);
    snprintf(into, length, "%s", found ? found : otherwise);
}

/* What happens to a call before it does anything: it hangs, it takes long, it fails. */
static int gate(int gpu, const char *function)
{
    char key[LENGTH];
    snprintf(key, sizeof key, "hang %s", function);
    if (line(gpu, key, NULL))
        for (;;) pause();
    snprintf(key, sizeof key, "delay %s", function);
    const char *found = line(gpu, key, NULL);
    if (!found) found = line(gpu, "delay *", NULL);
    if (found) {
        long long ns = (long long)(atof(found) * 1e6);
        struct timespec time = {ns / 1000000000, ns % 1000000000};
        nanosleep(&time, NULL);
    }
    snprintf(key, sizeof key, "error %s", function);
    found = line(gpu, key, NULL);
    if (!found && gpu >= 0) found = line(gpu, "error *", NULL);
    return found ? atoi(found) : SUCCESS;
}

#define GATE(gpu)                                \
    do {                                         \
        int gated = gate((gpu), __func__);       \
        if (gated) return gated;                 \
    } while (0)

static int simple(device gpu, const char *function, const char *key, unsigned *value)
{
    int gated = gate(gpu->number, function);
    long long found = 0;
    if (!gated) gated = number(gpu->number, key, &found);
    *value = (unsigned)found;
    return gated;
}
#define SIMPLE(function, key)                    \
    int function(device gpu, unsigned *value) { return simple(gpu, #function, key, value); }

int nvmlInitWithFlags(unsigned flags)
{
    (void)flags;
    load();
    GATE(-1);
    return SUCCESS;
}
int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
int nvmlShutdown(void) { return SUCCESS; }
const char *nvmlErrorString(int code) { (void)code; return "an error"; }

int nvmlSystemGetDriverVersion(char *into, unsigned length)
{
    GATE(-1);
    text(-1, "driver", "570.86.15", into, length);
    return SUCCESS;
}
int nvmlSystemGetNVMLVersion(char *into, unsigned length)
{
    GATE(-1);
    text(-1, "nvml", "12.570.86.15", into, length);
    return SUCCESS;
}

int nvmlDeviceGetCount_v2(unsigned *count)
{
    GATE(-1);
    const char *found = global("count");
    *count = found ? (unsigned)atoi(found) : 0;
    return SUCCESS;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, device *gpu)
{
    if (index >= MOST) return INVALID;
    *gpu = &devices[index];
    GATE((int)index);
    return SUCCESS;
}

int nvmlDeviceGetName(device gpu, char *into, unsigned length)
{
    GATE(gpu->number);
    text(gpu->number, "name", "NVIDIA H100 80GB HBM3", into, length);
    return SUCCESS;
}
int nvmlDeviceGetSerial(device gpu, char *into, unsigned length)
{
    char serial[32];
    GATE(gpu->number);
    snprintf(serial, sizeof serial, "13226210182%02d", gpu->number);
    text(gpu->number, "serial", serial, into, length);
    return SUCCESS;
}
int nvmlDeviceGetUUID(device gpu, char *into, unsigned length)
{
    char uuid[64];
    if (gpu->mig >= 0) {
        snprintf(into, length, "%s", gpu->uuid);
        return SUCCESS;
    }
    GATE(gpu->number);
    snprintf(uuid, sizeof uuid, "GPU-%08x-0000-1111-2222-333344445555", gpu->number + 0xa0);
    text(gpu->number, "uuid", uuid, into, length);
    return SUCCESS;
}
SIMPLE(nvmlDeviceGetMinorNumber, "minor")

struct pci { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; };
int nvmlDeviceGetPciInfo_v3(device gpu, struct pci *pci)
{
    GATE(gpu->number);
    memset(pci, 0, sizeof *pci);
    pci->bus = (unsigned)(0x1b + gpu->number * 0x10);
    char bus_id[32];
    snprintf(bus_id, sizeof bus_id, "00000000:%02X:00.0", pci->bus & 0xff);
    text(gpu->number, "bus", bus_id, pci->bus_id, sizeof pci->bus_id);
    return SUCCESS;
}

int nvmlDeviceGetTemperature(device gpu, unsigned sensor, unsigned *value)
{
    (void)sensor;
    return simple(gpu, __func__, "temperature", value);
}
int nvmlDeviceGetTemperatureThreshold(device gpu, unsigned which, unsigned *value)
{
    return simple(gpu, __func__, which == 0 ? "shutdown" : "slowdown", value);
}

struct memory { unsigned long long total, free, used; };
struct memory_v2 { unsigned version; unsigned long long total, reserved, free, used; };
static int memory(device gpu, struct memory *found)
{
    long long total = 80LL << 30, used = 0;
    number(gpu->number, "memory", &total);
    number(gpu->number, "used", &used);
    found->total = (unsigned long long)total;
    found->used = (unsigned long long)used;
    found->free = found->total - found->used;
    return SUCCESS;
}
int nvmlDeviceGetMemoryInfo(device gpu, struct memory *found)
{
    GATE(gpu->number);
    return memory(gpu, found);
}

int nvmlDeviceGetEccMode(device gpu, unsigned *current, unsigned *pending)
{
    long long mode = 0, next;
    GATE(gpu->number);
    int code = number(gpu->number, "ecc", &mode);
    next = mode;
    number(gpu->number, "ecc-pending", &next);
    *current = (unsigned)mode;
    *pending = (unsigned)next;
    return code;
}
int nvmlDeviceGetTotalEccErrors(device gpu, unsigned type, unsigned counter, unsigned long long *value)
{
    static const char *const keys[2][2] = {{"corrected", "corrected-aggregate"}, {"volatile", "aggregate"}};
    long long found = 0;
    GATE(gpu->number);
    int code = number(gpu->number, keys[type & 1][counter & 1], &found);
    *value = (unsigned long long)found;
    return code;
}

int nvmlDeviceGetRetiredPages(device gpu, unsigned cause, unsigned *count, unsigned long long *pages)
{
    long long found = 0;
    GATE(gpu->number);
    int code = number(gpu->number, cause ? "retired-double" : "retired-single", &found);
    if (code) return code;
    if (*count < found) {
        *count = (unsigned)found;
        return SMALL;
    }
    *count = (unsigned)found;
    for (int i = 0; pages && i < found; i++) pages[i] = (unsigned long long)i;
    return SUCCESS;
}
SIMPLE(nvmlDeviceGetRetiredPagesPendingStatus, "retired-pending")
SIMPLE(nvmlDeviceGetPerformanceState, "performance")
SIMPLE(nvmlDeviceGetPowerState, "performance")
SIMPLE(nvmlDeviceGetCurrPcieLinkGeneration, "generation")
SIMPLE(nvmlDeviceGetMaxPcieLinkGeneration, "max-generation")
SIMPLE(nvmlDeviceGetCurrPcieLinkWidth, "width")
SIMPLE(nvmlDeviceGetMaxPcieLinkWidth, "max-width")
SIMPLE(nvmlDeviceGetPcieReplayCounter, "replays")
SIMPLE(nvmlDeviceGetPowerManagementLimit, "limit")
SIMPLE(nvmlDeviceGetPowerManagementDefaultLimit, "default-limit")

static int reasons(device gpu, unsigned long long *value)
{
    long long found = 0;
    int code = number(gpu->number, "reasons", &found);
    *value = (unsigned long long)found;
    return code;
}
int nvmlDeviceGetCurrentClocksThrottleReasons(device gpu, unsigned long long *value)
{
    GATE(gpu->number);
    return reasons(gpu, value);
}

int nvmlDeviceGetNvLinkState(device gpu, unsigned link, unsigned *active)
{
    GATE(gpu->number);
    const char *found = line(gpu->number, "links", NULL);
    if (!found) return UNSUPPORTED;
    for (unsigned i = 0; *found; i++) {
        if (i == link) {
            *active = (unsigned)atoi(found);
            return SUCCESS;
        }
        found += strcspn(found, " ");
        found += strspn(found, " ");
    }
    return INVALID;
}

struct field { unsigned id, scope; long long timestamp, latency; unsigned type, code; union { unsigned long long ull; } value; };
int nvmlDeviceGetFieldValues(device gpu, int count, struct field *values)
{
    GATE(gpu->number);
    for (int i = 0; i < count; i++) {
        char key[LENGTH];
        snprintf(key, sizeof key, "field %u/%u", values[i].id, values[i].scope);
        const char *found = line(gpu->number, key, NULL);
        snprintf(key, sizeof key, "field %u", values[i].id);
        if (!found) found = line(gpu->number, key, NULL);
        values[i].code = found ? SUCCESS : UNSUPPORTED;
        values[i].type = 3; /* unsigned long long */
        values[i].value.ull = found ? strtoull(found, NULL, 0) : 0;
    }
    return SUCCESS;
}

struct process { unsigned pid; unsigned long long bytes; unsigned instance, compute; };
static int processes(device gpu, unsigned *count, struct process *into)
{
    unsigned found = 0, room = *count;
    int at = -1;
    const char *rest;
    while ((rest = line(gpu->number, "process", &at))) {
        if (into && found < room) {
            char *end;
            into[found].pid = (unsigned)strtoul(rest, &end, 0);
            into[found].bytes = strtoull(end, NULL, 0);
            into[found].instance = into[found].compute = 0xffffffffu;
        }
        found++;
        if (at == 0) break;
    }
    *count = found;
    return found > room ? SMALL : SUCCESS;
}
int nvmlDeviceGetComputeRunningProcesses_v2(device gpu, unsigned *count, struct process *into)
{
    GATE(gpu->number);
    return processes(gpu, count, into);
}

struct events { int fd; char buffer[4096]; int length; };
struct event { device gpu; unsigned long long type, data; unsigned instance, compute; };

int nvmlEventSetCreate(struct events **set)
{
    GATE(-1);
    const char *path = global("events");
    *set = calloc(1, sizeof **set);
    (*set)->fd = path ? open(path, O_RDWR | O_NONBLOCK | O_CLOEXEC) : -1;
    return SUCCESS;
}
int nvmlEventSetFree(struct events *set) { free(set); return SUCCESS; }
int nvmlDeviceGetSupportedEventTypes(device gpu, unsigned long long *types)
{
    long long found = 0xa;
    GATE(gpu->number);
    number(gpu->number, "event-types", &found);
    *types = (unsigned long long)found;
    return SUCCESS;
}
int nvmlDeviceRegisterEvents(device gpu, unsigned long long types, struct events *set)
{
    (void)types, (void)set;
    GATE(gpu->number);
    return SUCCESS;
}
int nvmlEventSetWait_v2(struct events *set, struct event *event, unsigned timeout_ms)
{
    GATE(-1);
    for (;;) {
        char *end = memchr(set->buffer, '\n', (size_t)set->length);
        if (end) {
            char what[64] = "";
            int gpu = 0;
            *end = 0;
            int fits = sscanf(set->buffer, "%d %63s", &gpu, what) == 2 && gpu >= 0 && gpu < MOST;
            set->length -= (int)(end + 1 - set->buffer);
            memmove(set->buffer, end + 1, (size_t)set->length);
            if (!fits) return 999;
            event->gpu = &devices[gpu];
            event->type = strcmp(what, "ecc") ? 0x8 : 0x2;
            event->data = strtoull(what, NULL, 0);
            event->instance = event->compute = 0xffffffffu;
            return SUCCESS;
        }
        struct pollfd wait = {set->fd, POLLIN, 0};
        if (poll(&wait, 1, (int)timeout_ms) == 0) return TIMEOUT;
        ssize_t got = read(set->fd, set->buffer + set->length, sizeof set->buffer - (size_t)set->length);
        if (got > 0) set->length += (int)got;
    }
}

#ifndef OLD
int nvmlDeviceGetMemoryInfo_v2(device gpu, struct memory_v2 *found)
{
    struct memory one;
    GATE(gpu->number);
    memory(gpu, &one);
    found->total = one.total;
    found->used = one.used;
    found->free = one.free;
    found->reserved = 0;
    return SUCCESS;
}
int nvmlDeviceGetCurrentClocksEventReasons(device gpu, unsigned long long *value)
{
    GATE(gpu->number);
    return reasons(gpu, value);
}
struct margin { unsigned version; int margin; };
int nvmlDeviceGetMarginTemperature(device gpu, struct margin *found)
{
    long long value = 0;
    GATE(gpu->number);
    int code = number(gpu->number, "margin", &value);
    found->margin = (int)value;
    return code;
}
int nvmlDeviceGetRemappedRows(device gpu, unsigned *corrected, unsigned *uncorrected, unsigned *pending, unsigned *failed)
{
    GATE(gpu->number);
    const char *found = line(gpu->number, "rows", NULL); /* corrected uncorrected pending failed */
    if (!found) return UNSUPPORTED;
    return sscanf(found, "%u %u %u %u", corrected, uncorrected, pending, failed) == 4 ? SUCCESS : 999;
}
struct sram { unsigned version; unsigned long long counts[11]; unsigned exceeded; };
int nvmlDeviceGetSramEccErrorStatus(device gpu, struct sram *found)
{
    return simple(gpu, __func__, "sram-exceeded", &found->exceeded);
}
struct fabric { unsigned version; unsigned char cluster[16]; unsigned status, clique, state, health; };
int nvmlDeviceGetGpuFabricInfoV(device gpu, struct fabric *found)
{
    GATE(gpu->number);
    const char *state = line(gpu->number, "fabric", NULL); /* state status */
    if (!state) return UNSUPPORTED;
    return sscanf(state, "%u %u", &found->state, &found->status) == 2 ? SUCCESS : 999;
}
int nvmlDeviceGetComputeRunningProcesses_v3(device gpu, unsigned *count, struct process *into)
{
    GATE(gpu->number);
    return processes(gpu, count, into);
}
int nvmlDeviceGetMigMode(device gpu, unsigned *current, unsigned *pending)
{
    long long mode = 0;
    GATE(gpu->number);
    int code = number(gpu->number, "mig", &mode);
    *current = *pending = (unsigned)mode;
    return code;
}
int nvmlDeviceGetMaxMigDeviceCount(device gpu, unsigned *count)
{
    GATE(gpu->number);
    *count = 7;
    return SUCCESS;
}
int nvmlDeviceGetMigDeviceHandleByIndex(device gpu, unsigned index, device *mig)
{
    int at = -1, left = (int)index;
    const char *found = NULL;
    GATE(gpu->number);
    while (left-- >= 0) {
        if (at == 0 || !(found = line(gpu->number, "mig-device", &at))) return NOT_FOUND;
    }
    *mig = &migs[gpu->number][index & 7];
    (*mig)->number = gpu->number;
    (*mig)->mig = (int)index;
    snprintf((*mig)->uuid, sizeof (*mig)->uuid, "%s", found);
    return SUCCESS;
}
#endif

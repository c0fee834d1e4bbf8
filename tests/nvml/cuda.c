/* A stand-in for CUDA's driver, libcuda.so.1: as much as ftslurm asks it. $CUDA_STANDIN is its GPUs' PCI addresses,
 * separated by spaces, or "hang", "crash" or "error CODE". As in CUDA, $CUDA_VISIBLE_DEVICES names some of them, by
 * number or by UUID, here GPU-<address>, and ends at the first that is none. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST = 16, LENGTH = 32, NO_DEVICE = 100 };

static char all[MOST][LENGTH], visible[MOST][LENGTH];
static int count;

static int see(const char *name)
{
    char uuid[LENGTH + 8];
    for (int i = 0; i < MOST && *all[i]; i++) {
        snprintf(uuid, sizeof uuid, "GPU-%.31s", all[i]);
        if (strcmp(name, uuid) && (strspn(name, "0123456789") != strlen(name) || !*name || atoi(name) != i)) continue;
        memcpy(visible[count++], all[i], LENGTH);
        return 1;
    }
    return 0;
}

int cuInit(unsigned flags)
{
    static char text[1024], names[1024];
    const char *limit = getenv("CUDA_VISIBLE_DEVICES");
    (void)flags;
    snprintf(text, sizeof text, "%.1000s", getenv("CUDA_STANDIN"));
    if (!strcmp(text, "hang"))
        for (;;) pause();
    if (!strcmp(text, "crash")) abort();
    if (!strncmp(text, "error ", 6)) return atoi(text + 6);
    int known = 0;
    for (char *one = strtok(text, " "); one && known < MOST; one = strtok(NULL, " "))
        snprintf(all[known++], LENGTH, "%.31s", one);
    snprintf(names, sizeof names, "%.1000s", limit ? limit : "");
    if (limit)
        for (char *one = strtok(names, ","); one && see(one); one = strtok(NULL, ",")) {}
    for (int i = 0; !limit && i < known; i++) memcpy(visible[count++], all[i], LENGTH);
    return count ? 0 : NO_DEVICE;
}

int cuDeviceGetCount(int *number)
{
    *number = count;
    return 0;
}

/* Its numbers are not those of the handles. */
int cuDeviceGet(int *device, int number)
{
    *device = number + 40;
    return 0;
}

int cuDeviceGetPCIBusId(char *into, int length, int device)
{
    snprintf(into, (size_t)length, "%.31s", visible[device - 40]);
    return 0;
}

int cuGetErrorName(int code, const char **name)
{
    *name = code == NO_DEVICE ? "CUDA_ERROR_NO_DEVICE" : NULL;
    return 0;
}

/* Stub library with the OpenCL functions that the plugin calls, without a device: kernels do nothing. It replaces drivers
 * in failure tests. The environment variable STUB_OPENCL selects the failure:
 *
 *   none     no platform exists
 *   build    every build fails
 *   slow     every build takes more than a minute
 *   hang     kernels never finish
 *   lost     the device disappears when the first kernel is enqueued
 *   abort    kernels terminate abnormally
 *   memory   allocations of 64 KiB or more fail
 *   silent   the end of a command calls nobody back
 *
 * In every mode, sub-buffers have to be released in the reverse order of their creation: with some drivers, any other order
 * is fatal.
 *
 * Build: cc -shared -fPIC -o libstub.so stub.c
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct object {
    int status; /* status of an event; 1 while the command runs */
    char *memory;
    struct object *parent; /* of a sub-buffer */
    int number;            /* of a sub-buffer, counted from 1; of a buffer, the number of its sub-buffers */
} object;

static object device, queue;
static int hung, aborted, gone;

static int mode(const char *name) {
    const char *given = getenv("STUB_OPENCL");
    return given && strcmp(given, name) == 0;
}

static int fails(int *error, int code) {
    if (error)
        *error = code;
    return code;
}

static int32_t answer(const void *value, size_t size, size_t room, void *to, size_t *found) {
    if (found)
        *found = size;
    if (to)
        memcpy(to, value, size < room ? size : room);
    return 0;
}

static int32_t answer_text(const char *text, size_t room, void *to, size_t *found) {
    return answer(text, strlen(text) + 1, room, to, found);
}

static object *event(object **to) {
    object *made = calloc(1, sizeof *made);
    made->status = aborted ? -9999 : hung ? 1 : 0;
    *to = made;
    return made;
}

int32_t clGetPlatformIDs(uint32_t room, void **platforms, uint32_t *count) {
    if (mode("none"))
        return -1001;
    if (count)
        *count = 1;
    if (platforms && room)
        platforms[0] = &device;
    return 0;
}

int32_t clGetDeviceIDs(void *platform, uint64_t kind, uint32_t room, void **devices, uint32_t *count) {
    return clGetPlatformIDs(room, devices, count);
}

int32_t clGetDeviceInfo(void *d, uint32_t name, size_t room, void *to, size_t *found) {
    uint32_t number = 1;
    uint64_t large;
    size_t size = 256;
    switch (name) {
    case 0x102B: return answer_text("stub", room, to, found);                /* name */
    case 0x102D: return answer_text("1", room, to, found);                   /* driver version */
    case 0x102F: return answer_text("OpenCL 1.2 stub", room, to, found);     /* version */
    case 0x1000: large = 4; return answer(&large, 8, room, to, found);       /* type: GPU */
    case 0x1010: large = 1 << 30; return answer(&large, 8, room, to, found); /* largest buffer */
    case 0x1004: return answer(&size, sizeof size, room, to, found);         /* largest work-group */
    case 0x1019: number = 1024; break;                                       /* alignment in bits */
    case 0x103A: number = 4; break;                                          /* vector of floats */
    default: break;
    }
    return answer(&number, 4, room, to, found);
}

void *clCreateContext(const void *p, uint32_t n, void *const *d, void *f, void *data, int32_t *error) {
    fails(error, 0);
    return &device;
}

void *clCreateCommandQueue(void *context, void *d, uint64_t properties, int32_t *error) {
    fails(error, 0);
    return &queue;
}

void *clCreateProgramWithSource(void *c, uint32_t n, const char **texts, const size_t *sizes, int32_t *error) {
    fails(error, 0);
    return calloc(1, sizeof(object));
}

int32_t clBuildProgram(void *p, uint32_t n, void *const *d, const char *options, void *f, void *data) {
    if (mode("slow"))
        sleep(60);
    return mode("build") ? -11 : 0;
}

int32_t clGetProgramBuildInfo(void *p, void *d, uint32_t name, size_t room, void *to, size_t *found) {
    return answer_text("a.cl:1:1: error: the stub compiles nothing", room, to, found);
}

int32_t clGetProgramInfo(void *p, uint32_t name, size_t room, void *to, size_t *found) {
    return -30; /* no binaries */
}

void *clCreateKernel(void *p, const char *name, int32_t *error) {
    fails(error, 0);
    return calloc(1, sizeof(object));
}

int32_t clSetKernelArg(void *k, uint32_t i, size_t size, const void *value) {
    return size == sizeof(void *) ? 0 : -51;
}

void *clCreateBuffer(void *c, uint64_t flags, size_t size, void *host, int32_t *error) {
    object *made;
    if (mode("memory") && size >= 65536) {
        fails(error, -4);
        return NULL;
    }
    fails(error, 0);
    made = calloc(1, sizeof *made);
    made->memory = calloc(1, size);
    return made;
}

void *clCreateSubBuffer(void *buffer, uint64_t flags, uint32_t kind, const void *info, int32_t *error) {
    object *made = calloc(1, sizeof *made);
    fails(error, 0);
    made->parent = buffer;
    made->number = ++made->parent->number;
    made->memory = made->parent->memory + *(const size_t *)info;
    return made;
}

int32_t clEnqueueWriteBuffer(void *q, object *b, uint32_t blocking, size_t at, size_t size, const void *from, uint32_t n,
                             void *const *wait, object **to) {
    memcpy(b->memory + at, from, size);
    event(to);
    return 0;
}

int32_t clEnqueueReadBuffer(void *q, object *b, uint32_t blocking, size_t at, size_t size, void *into, uint32_t n,
                            void *const *wait, object **to) {
    if (event(to)->status == 0)
        memcpy(into, b->memory + at, size);
    return 0;
}

int32_t clEnqueueNDRangeKernel(void *q, void *k, uint32_t dims, const size_t *offset, const size_t *global,
                               const size_t *local, uint32_t n, void *const *wait, object **to) {
    if (mode("lost")) {
        gone = 1;
        return -2;
    }
    hung = mode("hang");
    aborted = mode("abort");
    event(to);
    return 0;
}

int32_t clFlush(void *q) { return 0; }

int32_t clSetEventCallback(object *e, int32_t kind, void (*call)(void *, int32_t, void *), void *data) {
    if (e->status <= 0 && !mode("silent"))
        call(e, e->status, data);
    return 0;
}

int32_t clGetEventInfo(object *e, uint32_t name, size_t room, void *to, size_t *found) {
    return answer(&e->status, 4, room, to, found);
}

int32_t clGetEventProfilingInfo(object *e, uint32_t name, size_t room, void *to, size_t *found) {
    uint64_t time = name == 0x1283 ? 2000 : 1000; /* end, start */
    return answer(&time, 8, room, to, found);
}

/* A release on a lost device may block forever, so the plugin must not call one. */
static int32_t release(const char *name) {
    if (hung || gone)
        fprintf(stderr, "stub: %s on a lost device\n", name);
    return 0;
}

int32_t clReleaseEvent(void *e) { return release("clReleaseEvent"); }
int32_t clReleaseKernel(void *k) { return release("clReleaseKernel"); }
int32_t clReleaseProgram(void *p) { return 0; }

int32_t clReleaseMemObject(object *b) {
    if (b->parent && b->parent->number-- != b->number)
        fprintf(stderr, "stub: clReleaseMemObject of a sub-buffer before a later one\n");
    return release("clReleaseMemObject");
}

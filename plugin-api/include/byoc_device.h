/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * byoc_device.h: the memory of a device, and runs that continue after `run` has returned.
 *
 * A backend whose devices have separate memory declares "device_memory": true in its description. The tensors between its
 * regions then stay on the device; the host copies what it computes or reads itself. It asks the loader:
 *
 *     query "byoc.memory.1", {"device": "0"}    answer: the address of a byoc_memory, as the 8 bytes of a uintptr_t
 *
 * A loader that does not know the key gets tensors in the host's memory, as in a program that has no device.
 *
 * A run gets tensors of this memory as descriptors with the device of the table, the buffer in `data` and the offset in
 * `byte_offset`. It also gets tensors in the host's memory, in any combination: inputs of unknown dimensions, and constants.
 * Such a run is complete when it returns.
 */
#ifndef BYOC_DEVICE_H
#define BYOC_DEVICE_H

#include "byoc_plugin.h"

#ifdef __cplusplus
extern "C" {
#endif

#define BYOC_MEMORY_KEY "byoc.memory.1"
#define BYOC_STREAM_SERVICE "byoc.stream.1"

/* Code of an error after which the device cannot be used any more in this process: the host repeats the run without it. */
#define BYOC_DEVICE_LOST "DeviceLost"

/* Status of `wait` while the work goes on. */
enum { BYOC_PENDING = 3 };

/* Receiver of the reason of a failure. */
typedef struct byoc_report {
    void *context;
    /* Records the reason. `code` and `hint` may be NULL. */
    void (*fail)(void *context, const char *code, const char *message, const char *hint);
} byoc_report;

/* Flag: the device serves one run at a time. The host waits for a run before it calls the next one. */
#define BYOC_ONE_RUN 1u

/* Memory of a device. Lives as long as the process; its functions may be called from several threads at once. */
typedef struct byoc_memory {
    size_t struct_size;
    void *self;         /* first argument of the functions */
    byoc_device device; /* of the tensors in this memory, in DLPack's terms; not the host's */
    size_t alignment;   /* of offsets within a buffer: a power of two, at most 4096 */
    uint64_t flags;     /* BYOC_ONE_RUN, or 0 */
    /* Allocates a buffer. */
    int32_t (*allocate)(void *self, const byoc_report *report, size_t bytes, void **buffer);
    /* Releases a buffer that no unfinished run uses. */
    void (*release)(void *self, void *buffer);
    /* Copies from the host; returns when `from` may be written. Comes after the runs that access the range. */
    int32_t (*copy_in)(void *self, const byoc_report *report, void *buffer, size_t offset, const void *from, size_t bytes);
    /* Copies to the host; returns when the bytes are there. Comes after the runs that write the range. */
    int32_t (*copy_out)(void *self, const byoc_report *report, void *buffer, size_t offset, void *to, size_t bytes);
    /* The following functions are optional: NULL, or beyond struct_size. */
    /* Allocates page-locked host memory, aligned to 64 bytes, for tensors that the host copies to and from the device. Sets
     * `address` to NULL if ordinary memory serves as well. */
    int32_t (*allocate_host)(void *self, const byoc_report *report, size_t bytes, void **address);
    /* Releases memory that `allocate_host` returned. */
    void (*release_host)(void *self, void *address);
    /* Makes a buffer of host memory that runs only read, such as an input of the model, in place of a copy. The host neither
     * writes nor frees the memory before it releases the buffer. Sets `buffer` to NULL if the host has to copy. */
    int32_t (*import_host)(void *self, const byoc_report *report, const void *from, size_t bytes, void **buffer);
} byoc_memory;

/* Unfinished work of a run. */
typedef struct byoc_event {
    size_t struct_size;
    void *self;
    /* Waits until the work is done or the given number of milliseconds has passed: BYOC_OK, BYOC_PENDING, or BYOC_ERROR after a call of
     * `fail`. */
    int32_t (*wait)(void *self, const byoc_report *report, uint32_t milliseconds);
    /* Releases the event, once. If the work is not done, the host does not wait for it any more, and never releases or reads
     * the memory that it uses: the device counts as lost. */
    void (*release)(void *self);
} byoc_event;

/* The service "byoc.stream.1". All functions belong to a `run`, and are called on its thread. */
typedef struct byoc_stream {
    size_t struct_size;
    /* Returns the number of unfinished runs that this one has to wait for, because it reads or overwrites what they write or
     * read, and sets `events` to an array of them that is valid until `run` returns. A device that starts work in the order of
     * submission need not look. */
    size_t (*dependencies)(const byoc_event **events);
    /* Takes the event of the work that this run has started; BYOC_OK. Any other status: the work has to be done when `run`
     * returns, and the event stays with the plugin. Call it once, after everything of the run is on its way. */
    int32_t (*submit)(const byoc_event *event);
    /* Returns the size of this run's workspace in device memory, and sets `buffer` and `offset` to its place; 0 if there is
     * none. After `prepare`, the host asks the executable for the size:
     *
     *     query "plan.device_workspace", {"plan": 3, "inputs": [[1, 64]]}    answer: bytes, in decimal
     *
     * Runs whose tensors are all in the memory of one device get it. A struct_size that ends before this field lacks it. */
    size_t (*workspace)(void **buffer, size_t *offset);
} byoc_stream;

#ifdef __cplusplus
}
#endif

#endif

/*
 * Times an exported program. main.c of the project is compiled with -Dmodel_run=timed_run, so that its run of the recorded
 * inputs becomes many, of which the median is printed.
 */
#define _POSIX_C_SOURCE 199309L
#include "model.h"
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { MOST = 2000 };

int timed_run(model *self, const model_inputs *inputs, const model_outputs *outputs);

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec * 1e3 + (double)time.tv_nsec / 1e6;
}

static int ascending(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int timed_run(model *self, const model_inputs *inputs, const model_outputs *outputs) {
    static double times[MOST];
    const double start = now();
    int count = 0, status = 0;
    /* Warm-up, then half a second. */
    while (count < 20 && status == 0) {
        status = model_run(self, inputs, outputs);
        ++count;
    }
    for (count = 0; status == 0 && count < MOST && (count < 20 || now() - start < 500.0); ++count) {
        const double begin = now();
        status = model_run(self, inputs, outputs);
        times[count] = now() - begin;
    }
    qsort(times, (size_t)count, sizeof times[0], ascending);
    printf("median_ms %.6f\n", times[count / 2]);
    return status;
}

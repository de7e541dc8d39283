#ifndef BYOC_TAPS
#define BYOC_TAPS
/* The first tap k >= 0 for which base + k * step >= 0. */
static inline int64_t byoc_first_tap(int64_t base, int64_t step) {
    return base < 0 ? (-base + step - 1) / step : 0;
}

/* The end of the taps k < n for which base + k * step < size; at least the first tap. */
static inline int64_t byoc_end_tap(int64_t base, int64_t step, int64_t size, int64_t n) {
    const int64_t end = base < size ? (size - base + step - 1) / step : 0;
    const int64_t bound = end < n ? end : n;
    const int64_t first = byoc_first_tap(base, step);
    return bound > first ? bound : first;
}
#endif

#ifndef BYOC_BASE
#define BYOC_BASE
#include <math.h>
#include <stdint.h>
#include <string.h>

/* Number of floats in a vector, and selection of a constant by it: BYOC_PICK(for 512-bit vectors, for shorter ones). */
#if defined(__AVX512F__)
#define BYOC_VL 16
#define BYOC_PICK(wide, narrow) (wide)
#else
#define BYOC_VL 8
#define BYOC_PICK(wide, narrow) (narrow)
#endif
typedef float byoc_vector __attribute__((vector_size(BYOC_VL * 4), aligned(4), may_alias));

#define BYOC_RESTRICT restrict
#define BYOC_INLINE inline __attribute__((always_inline))
#define BYOC_ALIGNED __attribute__((aligned(64)))
#if defined(__clang__)
#define BYOC_UNROLL _Pragma("clang loop unroll(full)")
#define BYOC_IVDEP _Pragma("clang loop vectorize(enable)")
#else
#define BYOC_UNROLL _Pragma("GCC unroll 32")
#define BYOC_IVDEP _Pragma("GCC ivdep")
#endif

/* The host's threads: calls task(arg, i) for every i below n. */
typedef struct {
    void *host;
    void (*parallel_for)(void *host, int64_t n, void (*task)(void *arg, int64_t i), void *arg);
} byoc_pool;

static inline void byoc_run(const byoc_pool *pool, int64_t n, void (*task)(void *, int64_t), void *arg) {
    if (n == 1)
        task(arg, 0);
    else
        pool->parallel_for(pool->host, n, task, arg);
}
#endif

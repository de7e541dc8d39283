#ifndef BYOC_VECTORS
#define BYOC_VECTORS
/* Number of floats in a vector. */
#define BYOC_VL BYOC_LANES
typedef float byoc_vector __attribute__((vector_size(BYOC_VL * 4), aligned(4), may_alias));

#define BYOC_INLINE inline __attribute__((always_inline))
#if defined(__clang__)
#define BYOC_UNROLL _Pragma("clang loop unroll(full)")
#else
#define BYOC_UNROLL _Pragma("GCC unroll 32")
#endif

/*
 * t[r * nr + c] = sum over i < n0, j < n1, k < n2 of a[r * row + i * s0 + j * s1 + k * s2] * b[i * d0 + j * d1 + k * d2 + c],
 * for mr rows and nr columns, a multiple of the vectors. The sums are kept in registers.
 */
static BYOC_INLINE void byoc_vector_tile(const int mr, const int nr, const int64_t row, const int64_t n0,
                                         const int64_t s0, const int64_t d0, const int64_t n1, const int64_t s1,
                                         const int64_t d1, const int64_t n2, const int64_t s2, const int64_t d2,
                                         const float *restrict a, const float *restrict b, float *restrict t) {
    byoc_vector sum[16][8];
    const int nv = nr / BYOC_VL;
    BYOC_UNROLL
    for (int r = 0; r < mr; ++r) {
        BYOC_UNROLL
        for (int v = 0; v < nv; ++v)
            sum[r][v] = (byoc_vector){0};
    }
    for (int64_t i = 0; i < n0; ++i)
        for (int64_t j = 0; j < n1; ++j) {
            const float *x = a + (i * s0 + j * s1);
            const float *y = b + (i * d0 + j * d1);
            for (int64_t k = 0; k < n2; ++k) {
                byoc_vector w[8];
                BYOC_UNROLL
                for (int v = 0; v < nv; ++v)
                    w[v] = *(const byoc_vector *)(y + v * BYOC_VL);
                BYOC_UNROLL
                for (int r = 0; r < mr; ++r) {
                    BYOC_UNROLL
                    for (int v = 0; v < nv; ++v)
                        sum[r][v] += x[r * row] * w[v];
                }
                x += s2;
                y += d2;
            }
        }
    BYOC_UNROLL
    for (int r = 0; r < mr; ++r) {
        BYOC_UNROLL
        for (int v = 0; v < nv; ++v)
            *(byoc_vector *)(t + r * nr + v * BYOC_VL) = sum[r][v];
    }
}

/*
 * t[r * n + c] = sum over i < n0, j < n1 of a[r * pixel + i * s0 + j * s1 + c] * b[i * d0 + j * d1 + c] for `pixels`
 * pixels and n channels, a multiple of the vectors.
 */
static BYOC_INLINE void byoc_vector_depthwise(const int pixels, const int n, const int64_t pixel, const int64_t n0,
                                              const int64_t s0, const int64_t d0, const int64_t n1, const int64_t s1,
                                              const int64_t d1, const float *restrict a, const float *restrict b,
                                              float *restrict t) {
    byoc_vector sum[8][2];
    const int nv = n / BYOC_VL;
    BYOC_UNROLL
    for (int r = 0; r < pixels; ++r) {
        BYOC_UNROLL
        for (int v = 0; v < nv; ++v)
            sum[r][v] = (byoc_vector){0};
    }
    for (int64_t i = 0; i < n0; ++i)
        for (int64_t j = 0; j < n1; ++j) {
            const float *x = a + (i * s0 + j * s1);
            const float *w = b + (i * d0 + j * d1);
            BYOC_UNROLL
            for (int v = 0; v < nv; ++v) {
                const byoc_vector weight = *(const byoc_vector *)(w + v * BYOC_VL);
                BYOC_UNROLL
                for (int r = 0; r < pixels; ++r)
                    sum[r][v] += *(const byoc_vector *)(x + r * pixel + v * BYOC_VL) * weight;
            }
        }
    BYOC_UNROLL
    for (int r = 0; r < pixels; ++r) {
        BYOC_UNROLL
        for (int v = 0; v < nv; ++v)
            *(byoc_vector *)(t + r * n + v * BYOC_VL) = sum[r][v];
    }
}
#endif

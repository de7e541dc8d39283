#ifndef BYOC_VECTOR_TILE
#define BYOC_VECTOR_TILE
/*
 * t[r * nr + c] = sum over i < n0, j < n1, k < n2 of a[r * row + i * s0 + j * s1 + k * s2] * b[i * d0 + j * d1 + k * d2 + c],
 * for mr rows and nr columns, a multiple of the vectors. The sums are kept in registers.
 */
static BYOC_INLINE void byoc_vector_tile(const int mr, const int nr, const int64_t row, const int64_t n0,
                                         const int64_t s0, const int64_t d0, const int64_t n1, const int64_t s1,
                                         const int64_t d1, const int64_t n2, const int64_t s2, const int64_t d2,
                                         const float *BYOC_RESTRICT a, const float *BYOC_RESTRICT b, float *BYOC_RESTRICT t) {
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
#endif

#ifndef BYOC_DEPTHWISE
#define BYOC_DEPTHWISE
/* Packs the weights of a depthwise convolution: per tap the channels, padded with zeros to a multiple of 16. */
static inline void byoc_pack_channels(float *restrict to, const float *restrict from, int64_t n0, int64_t s0, int64_t n1,
                                      int64_t s1, int64_t channels, int64_t channel_stride) {
    const int64_t padded = (channels + 15) / 16 * 16;
    for (int64_t i = 0; i < n0; ++i)
        for (int64_t j = 0; j < n1; ++j)
            for (int64_t c = 0; c < padded; ++c)
                *to++ = c < channels ? from[i * s0 + j * s1 + c * channel_stride] : 0.0f;
}

/*
 * t[r * ldt + c] = sum over i < n0, j < n1 of a[r * pixel + i * s0 + j * s1 + c] * b[(i * n1 + j) * channels + c], for
 * `pixels` pixels and nv vectors of channels.
 */
static BYOC_INLINE void byoc_depthwise(const int pixels, const int nv, const int ldt, const int64_t pixel,
                                       const int64_t n0, const int64_t s0, const int64_t n1, const int64_t s1,
                                       const int64_t channels, const float *restrict a, const float *restrict b,
                                       float *restrict t) {
    byoc_vector sum[8][2];
    BYOC_UNROLL
    for (int r = 0; r < pixels; ++r) {
        BYOC_UNROLL
        for (int v = 0; v < nv; ++v)
            sum[r][v] = (byoc_vector){0};
    }
    for (int64_t i = 0; i < n0; ++i)
        for (int64_t j = 0; j < n1; ++j) {
            const float *x = a + i * s0 + j * s1;
            const float *w = b + (i * n1 + j) * channels;
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
            *(byoc_vector *)(t + r * ldt + v * BYOC_VL) = sum[r][v];
    }
}
#endif

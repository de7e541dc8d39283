#ifndef BYOC_QUANTIZED
#define BYOC_QUANTIZED
static inline int32_t byoc_int32(int64_t x) {
    return x < INT32_MIN ? INT32_MIN : x > INT32_MAX ? INT32_MAX : (int32_t)x;
}

/* x - zero, saturated. */
static inline int32_t byoc_difference(int32_t x, int32_t zero) {
    return byoc_int32((int64_t)x - zero);
}

/* x + zero in [low, high]. */
static inline int32_t byoc_clamp(int32_t x, int32_t zero, int32_t low, int32_t high) {
    const int64_t y = (int64_t)x + zero;
    return y < low ? low : y > high ? high : (int32_t)y;
}

/* x + (y - zero) and x - (y - zero) in [low, high]. */
static inline int32_t byoc_sum(int32_t x, int32_t y, int32_t zero, int32_t low, int32_t high) {
    const int64_t z = (int64_t)x + ((int64_t)y - zero);
    return z < low ? low : z > high ? high : (int32_t)z;
}

static inline int32_t byoc_subtraction(int32_t x, int32_t y, int32_t zero, int32_t low, int32_t high) {
    const int64_t z = (int64_t)x - ((int64_t)y - zero);
    return z < low ? low : z > high ? high : (int32_t)z;
}

/* x in [low, high]; NaN is 0. */
static inline int32_t byoc_saturate(float x, float low, float high) {
    return x != x ? 0 : x < low ? (int32_t)low : x > high ? (int32_t)high : (int32_t)x;
}

/* x in the range of int32, whose upper end float32 does not have; NaN is 0. */
static inline int32_t byoc_saturate32(float x) {
    return x != x ? 0 : x < -2147483648.0f ? INT32_MIN : x >= 2147483648.0f ? INT32_MAX : (int32_t)x;
}

/* x * multiplier / 2^shift, rounded: halves to the larger integer, away from zero, or to the even integer. */
static inline int32_t byoc_rescale_upward(int32_t x, int32_t multiplier, int32_t shift) {
    return byoc_int32(((int64_t)x * multiplier + ((int64_t)1 << (shift - 1))) >> shift);
}

static inline int32_t byoc_rescale_nearest(int32_t x, int32_t multiplier, int32_t shift) {
    const int64_t product = (int64_t)x * multiplier;
    return byoc_int32((product + ((int64_t)1 << (shift - 1)) - (product < 0)) >> shift);
}

static inline int32_t byoc_rescale_even(int32_t x, int32_t multiplier, int32_t shift) {
    const int64_t product = (int64_t)x * multiplier;
    return byoc_int32((product + ((int64_t)1 << (shift - 1)) - 1 + ((product >> shift) & 1)) >> shift);
}
#endif

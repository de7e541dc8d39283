#ifndef BYOC_HALF
#define BYOC_HALF
/*
 * Numbers of float16 in memory are computed as float32. Results are rounded to the nearest, halves to even. Where the
 * processor converts and the compiler has the type, they do it.
 */
#if defined(__FLT16_MANT_DIG__) && (defined(__aarch64__) || defined(__F16C__))
__extension__ typedef _Float16 byoc_half;

static inline float byoc_from_half(uint16_t bits) {
    union {
        uint16_t bits;
        byoc_half value;
    } x;
    x.bits = bits;
    return (float)x.value;
}

static inline uint16_t byoc_to_half(float value) {
    union {
        uint16_t bits;
        byoc_half value;
    } x;
    x.value = (byoc_half)value;
    return x.bits;
}
#else
static inline float byoc_from_half(uint16_t bits) {
    const uint32_t sign = (uint32_t)(bits & 0x8000u) << 16, magnitude = bits & 0x7fffu;
    union {
        uint32_t bits;
        float value;
    } x;
    if (magnitude < 0x0400u)
        x.value = (float)magnitude * 5.9604644775390625e-8f;
    else
        x.bits = (magnitude << 13) + (magnitude < 0x7c00u ? 0x38000000u : 0x70000000u);
    x.bits |= sign;
    return x.value;
}

static inline uint16_t byoc_to_half(float value) {
    union {
        uint32_t bits;
        float value;
    } x;
    uint32_t sign, magnitude, half;
    x.value = value;
    sign = (x.bits >> 16) & 0x8000u;
    magnitude = x.bits & 0x7fffffffu;
    if (magnitude >= 0x47800000u)
        half = magnitude > 0x7f800000u ? 0x7e00u : 0x7c00u;
    else if (magnitude >= 0x38800000u)
        half = (magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
    else {
        /* The sum is a multiple of 2^-24, the distance between subnormal numbers of float16. */
        x.bits = magnitude;
        x.value += 0.5f;
        half = x.bits - 0x3f000000u;
    }
    return (uint16_t)(sign | half);
}
#endif

static inline float byoc_round_half(float value) {
    return byoc_from_half(byoc_to_half(value));
}
#endif

#ifndef BYOC_MATH
#define BYOC_MATH
/*
 * Functions without branches, so that loops over them vectorize. The coefficients are minimax approximations on these
 * intervals; errors are a few units in the last place.
 */
static inline float byoc_float(uint32_t bits) {
    union {
        uint32_t bits;
        float value;
    } x = {bits};
    return x.value;
}

/* e^x = 2^n e^r with |r| <= ln(2)/2; 2^n is split into two factors, so that the result may be subnormal or infinite. */
static inline float byoc_exp(float x) {
    const float high = x > 89.0f ? 89.0f : x;
    const float bound = high < -104.0f ? -104.0f : high;
    const float n = bound * 1.44269504f + 12582912.0f - 12582912.0f;
    const float r = (bound - n * 0.693145752f) - n * 1.42860677e-6f;
    const float p = 0.49999994f + r * (0.16666521f + r * (0.041668389f + r * (0.0083687101f + r * 0.0013814613f)));
    const float e = 1.0f + (r + r * r * p);
    const int32_t whole = (int32_t)n;
    const int32_t half = whole >> 1;
    return e * byoc_float((uint32_t)(half + 127) << 23) * byoc_float((uint32_t)(whole - half + 127) << 23);
}

/* Computed from e^-|x|, because e^-x overflows for large negative x although the result does not underflow yet. */
static inline float byoc_sigmoid(float x) {
    const float e = byoc_exp(-fabsf(x));
    return (x < 0.0f ? e : 1.0f) / (1.0f + e);
}

static inline double byoc_sigmoid64(double x) {
    return 1.0 / (1.0 + exp(-x));
}

/* An odd polynomial near 0, elsewhere 1 - 2 / (e^2|x| + 1). */
static inline float byoc_tanh(float x) {
    const float a = fabsf(x), s = x * x;
    const float p = -0.33333278f + s * (0.13331328f + s * (-0.053729225f + s * (0.020601995f + s * -0.0056607774f)));
    const float small = x + x * s * p;
    const float large = copysignf(1.0f - 2.0f / (byoc_exp(2.0f * a) + 1.0f), x);
    return a < 0.625f ? small : large;
}

/* An odd polynomial below 1, elsewhere 1 - e^-p(|x|) with p fitted to -ln(erfc(x)) up to 4.1, where erf rounds to 1. */
static inline float byoc_erf(float x) {
    const float a = fabsf(x), s = x * x;
    const float p = 1.1283792f
        + s * (-0.37612638f
               + s * (0.11283783f
                      + s * (-0.026865445f
                             + s * (0.0052210749f
                                    + s * (-0.00084847112f + s * (0.00011270544f + s * -9.680135e-6f))))));
    const float b = a > 4.1f ? 4.1f : a;
    const float q = -0.00020206586f
        + b * (1.1296494f
               + b * (0.63306576f
                      + b * (0.10860661f
                             + b * (-0.02534893f
                                    + b * (0.0042706383f
                                           + b * (-0.00046035848f + b * (2.4754345e-5f + b * -2.1209333e-7f)))))));
    const float large = copysignf(1.0f - byoc_exp(-q), x);
    return a < 1.0f ? x * p : large;
}

/* A negative quotient that underflows to 0 still has the floor -1. */
static inline float byoc_floor_divide(float a, float b) {
    const float q = a / b;
    return q == 0.0f && a != 0.0f && (a < 0.0f) != (b < 0.0f) && fabsf(b) < INFINITY ? -1.0f : floorf(q);
}

/* The remainder with the sign of the divisor. */
static inline float byoc_floor_mod(float a, float b) {
    const float r = fmodf(a, b);
    return r != 0.0f && (r < 0.0f) != (b < 0.0f) ? r + b : r;
}

static inline double byoc_floor_mod64(double a, double b) {
    const double r = fmod(a, b);
    return r != 0.0 && (r < 0.0) != (b < 0.0) ? r + b : r;
}
#endif

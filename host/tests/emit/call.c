/* Calls the function of a case on the contents of its files. Each tensor has an allocation of its own, so that a
 * sanitizer finds accesses out of range; memory that is not written stays NaN. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef void region(const void *const *in, void *const *out, const void *const *constants, void *work);

static FILE *file(const char *symbol, const char *kind, size_t index, const char *mode) {
    char name[64];
    snprintf(name, sizeof(name), "%s.%s%u", symbol, kind, (unsigned)index);
    FILE *result = fopen(name, mode);
    if (!result)
        abort();
    return result;
}

static void call(region *run, const char *symbol, size_t inputs, const size_t *input_bytes, size_t outputs,
    const size_t *output_bytes, size_t workspace) {
    void *in[8], *out[8], *work = malloc(workspace);
    memset(work, 0xff, workspace);
    for (size_t i = 0; i < inputs; ++i) {
        FILE *source = file(symbol, "in", i, "rb");
        in[i] = malloc(input_bytes[i]);
        if (fread(in[i], 1, input_bytes[i], source) != input_bytes[i])
            abort();
        fclose(source);
    }
    for (size_t i = 0; i < outputs; ++i)
        out[i] = memset(malloc(output_bytes[i]), 0xff, output_bytes[i]);
    run((const void *const *)in, out, 0, work);
    for (size_t i = 0; i < outputs; ++i) {
        FILE *target = file(symbol, "out", i, "wb");
        if (fwrite(out[i], 1, output_bytes[i], target) != output_bytes[i])
            abort();
        fclose(target);
        free(out[i]);
    }
    for (size_t i = 0; i < inputs; ++i)
        free(in[i]);
    free(work);
}

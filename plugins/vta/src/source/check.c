#ifndef VTA_CHECK
#define VTA_CHECK

static unsigned char *vta_tensor_memory(const struct vta_tensor *t, size_t *bytes) {
    *bytes = t->images * t->channels * t->positions * t->bytes;
    return malloc(*bytes);
}

/* Computes the 64-bit FNV-1a hash. */
static uint64_t vta_hash(const unsigned char *data, size_t bytes) {
    uint64_t hash = 14695981039346656037u;
    for (size_t i = 0; i < bytes; ++i) hash = (hash ^ data[i]) * 1099511628211u;
    return hash;
}

/* Runs one input from a linear congruential generator, and compares the hashes of the outputs. Returns 0 if all match.
   in and out must be large enough for the region's input and output pointers. */
static int vta_check(const struct vta_region *r, struct vta_state *s, const char *name, void **in, void **out) {
    int wrong = 0;
    size_t bytes;
    for (size_t i = 0; i < r->input_count; ++i) {
        uint32_t state = (uint32_t)i + 1;
        unsigned char *data = vta_tensor_memory(&r->inputs[i], &bytes);
        if (data == NULL) return 1;
        in[i] = data;
        for (size_t k = 0; k < bytes; ++k) {
            state = state * 1664525u + 1013904223u;
            data[k] = (unsigned char)(state >> 24);
        }
    }
    for (size_t i = 0; i < r->output_count; ++i)
        if ((out[i] = vta_tensor_memory(&r->outputs[i], &bytes)) == NULL) return 1;
    s->scratch = malloc(r->scratch_bytes);
    if (s->scratch == NULL || vta_open(r, s) != 0) {
        fprintf(stderr, "%s: no device, or no memory of the device left\n", name);
        wrong = 1;
    } else if (vta_run(r, s, (const void *const *)in, out) != 0) {
        fprintf(stderr, "%s: the device has not finished the run\n", name);
        wrong = 1;
    }
    for (size_t i = 0; i < r->output_count && wrong == 0; ++i) {
        uint64_t hash = vta_hash(out[i], r->outputs[i].images * r->outputs[i].channels * r->outputs[i].positions *
                                             r->outputs[i].bytes);
        printf("%s, output %u: expected hash %016" PRIx64 ", found %016" PRIx64 "\n", name, (unsigned)i, r->expected[i],
               hash);
        wrong = hash != r->expected[i];
    }
    vta_close(r, s);
    free(s->scratch);
    s->scratch = NULL;
    for (size_t i = 0; i < r->input_count; ++i) free(in[i]);
    for (size_t i = 0; i < r->output_count; ++i) free(out[i]);
    return wrong;
}

#endif


#ifndef VTA_REGION
#define VTA_REGION

struct vta_buffer {
    size_t bytes;
    const unsigned char *content; /* NULL for tensors */
};

/* LOAD or STORE to which the buffer address is added, in units of 1 << log_bytes bytes. */
struct vta_transfer {
    uint32_t instruction;
    uint16_t buffer, log_bytes;
};

/* Dense tensor of (images, channels, positions), or of (images, channels) if rows is 1, with elements of 1 or 4 bytes. */
struct vta_tensor {
    size_t buffer, images, channels, positions, bytes;
    int rows;
};

struct vta_region {
    size_t batch, block;
    unsigned dram_base_bit;
    size_t buffer_count, instruction_count, transfer_count, run_count, input_count, output_count;
    const struct vta_buffer *buffers;
    const uint64_t (*stream)[2]; /* low and high half; addresses are relative to a buffer */
    const struct vta_transfer *transfers;
    const uint32_t (*runs)[2]; /* first instruction, number of instructions */
    const struct vta_tensor *inputs, *outputs;
    const uint64_t *expected; /* hashes of the outputs for the input of vta_check; NULL without vta_check */
    size_t scratch_bytes;
};

struct vta_state {
    void **memory;
    void *instructions;
    VTADeviceHandle device;
    void *scratch; /* scratch_bytes of staging memory for transfers to and from the device */
};

static size_t vta_blocks(size_t count, size_t size) {
    return (count + size - 1) / size;
}

/* Size of a packed tensor in bytes; an int32 tensor has four planes of this size. */
static size_t vta_packed_bytes(const struct vta_region *r, const struct vta_tensor *t) {
    return vta_blocks(t->images, r->batch) * vta_blocks(t->channels, r->block) * t->positions * r->batch * r->block;
}

/* Index of an element in a packed tensor. */
static size_t vta_packed_index(const struct vta_region *r, const struct vta_tensor *t, size_t image, size_t channel,
                               size_t position) {
    size_t group = image / r->batch, block = channel / r->block;
    size_t element = t->rows ? block * vta_blocks(t->images, r->batch) + group
                             : (group * vta_blocks(t->channels, r->block) + block) * t->positions + position;
    return (element * r->batch + image % r->batch) * r->block + channel % r->block;
}

/* Copies between a dense tensor and its packed form. */
static void vta_repack(const struct vta_region *r, const struct vta_tensor *t, unsigned char *dense,
                       unsigned char *packed, int to_packed) {
    size_t plane = vta_packed_bytes(r, t), at = 0;
    for (size_t image = 0; image < t->images; ++image)
        for (size_t channel = 0; channel < t->channels; ++channel)
            for (size_t position = 0; position < t->positions; ++position)
                for (size_t byte = 0; byte < t->bytes; ++byte, ++at) {
                    unsigned char *p = &packed[byte * plane + vta_packed_index(r, t, image, channel, position)];
                    if (to_packed)
                        *p = dense[at];
                    else
                        dense[at] = *p;
                }
}

static void vta_upload(void *to, const void *from, size_t bytes) {
    VTAMemCopyFromHost(to, from, bytes);
    VTAFlushCache(to, VTAMemGetPhyAddr(to), (int)bytes);
}

static void vta_close(const struct vta_region *r, struct vta_state *s) {
    for (size_t i = 0; i < r->buffer_count; ++i) {
        if (s->memory[i] != NULL) VTAMemFree(s->memory[i]);
        s->memory[i] = NULL;
    }
    if (s->instructions != NULL) VTAMemFree(s->instructions);
    if (s->device != NULL) VTADeviceFree(s->device);
    s->instructions = NULL;
    s->device = NULL;
}

/* Writes the stream with absolute addresses to device memory. Returns 0 on success. */
static int vta_relocate(const struct vta_region *r, struct vta_state *s) {
    size_t bytes = r->instruction_count * sizeof *r->stream;
    uint64_t(*stream)[2] = s->scratch;
    s->instructions = VTAMemAlloc(bytes, VTA_CACHED);
    if (s->instructions == NULL) return 1;
    memcpy(stream, r->stream, bytes);
    for (size_t i = 0; i < r->transfer_count; ++i) {
        const struct vta_transfer *t = &r->transfers[i];
        uint64_t element = (uint64_t)VTAMemGetPhyAddr(s->memory[t->buffer]) >> t->log_bytes;
        stream[t->instruction][0] += element << r->dram_base_bit;
    }
    vta_upload(s->instructions, stream, bytes);
    return 0;
}

static int vta_open(const struct vta_region *r, struct vta_state *s) {
    s->device = VTADeviceAlloc();
    if (s->device == NULL) return 1;
    for (size_t i = 0; i < r->buffer_count; ++i) {
        const struct vta_buffer *b = &r->buffers[i];
        s->memory[i] = VTAMemAlloc(b->bytes > 0 ? b->bytes : 1, VTA_CACHED);
        if (s->memory[i] == NULL) return 1;
        if (b->content != NULL) vta_upload(s->memory[i], b->content, b->bytes);
    }
    return vta_relocate(r, s);
}

static void vta_write(const struct vta_region *r, struct vta_state *s, const struct vta_tensor *t, const void *dense) {
    size_t bytes = vta_packed_bytes(r, t);
    memset(s->scratch, 0, bytes);
    vta_repack(r, t, (unsigned char *)(uintptr_t)dense, s->scratch, 1);
    vta_upload(s->memory[t->buffer], s->scratch, bytes);
}

static void vta_read(const struct vta_region *r, struct vta_state *s, const struct vta_tensor *t, void *dense) {
    size_t bytes = vta_packed_bytes(r, t) * t->bytes;
    void *from = s->memory[t->buffer];
    VTAInvalidateCache(from, VTAMemGetPhyAddr(from), (int)bytes);
    VTAMemCopyToHost(s->scratch, from, bytes);
    vta_repack(r, t, dense, s->scratch, 0);
}

static int vta_run(const struct vta_region *r, struct vta_state *s, const void *const *in, void *const *out) {
    for (size_t i = 0; i < r->input_count; ++i) vta_write(r, s, &r->inputs[i], in[i]);
    for (size_t i = 0; i < r->run_count; ++i) {
        vta_phy_addr_t first = VTAMemGetPhyAddr(s->instructions) + r->runs[i][0] * (vta_phy_addr_t)sizeof *r->stream;
        if (VTADeviceRun(s->device, first, r->runs[i][1], 1000000000u) != 0) return 1;
    }
    for (size_t i = 0; i < r->output_count; ++i) vta_read(r, s, &r->outputs[i], out[i]);
    return 0;
}

#endif


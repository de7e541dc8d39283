/* Stub of TensorRT for RTX, of its parser and of CUDA's run time, for tests on machines without any of them. Written from the
 * calls that the plugin makes; it has nothing of NVIDIA's. An engine is the ONNX model that it was built from, and computes
 * relu of its first input.
 *
 * Environment:
 *   STUB_TENSORRT   version   the library says that it is 1.8.0
 *                   full      the library says that it is full TensorRT 10.16
 *                   tables    networks have one layer more than the model
 *                   crash     the library ends the process when it is opened
 *                   refuse    no engine is built
 *   STUB_CUDA       none      there is no device
 *                   lost      the device is lost in the first run
 *                   memory    allocations of 64 KiB or more fail
 *                   hopper    the device has compute capability 9.0
 *   STUB_LOG        file to which each call is appended, one per line
 *
 * Build: cc -shared -fPIC -D LIBRARY (or PARSER, or CUDART) -o FILE stub.c
 */
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Function that not every one of the libraries uses. */
#define SHARED static __attribute__((unused))

SHARED int mode(const char *variable, const char *name) {
    const char *given = getenv(variable);
    return given && strcmp(given, name) == 0;
}

SHARED void note(const char *format, ...) {
    const char *file = getenv("STUB_LOG");
    FILE *log = file ? fopen(file, "a") : NULL;
    va_list arguments;
    if (!log)
        return;
    va_start(arguments, format);
    vfprintf(log, format, arguments);
    va_end(arguments);
    fputc('\n', log);
    fclose(log);
}

#ifndef CUDART

/* -- ONNX, as far as it is needed: names of inputs, outputs and operators, elements of the first input -------------- */

typedef struct model {
    char inputs[8][64], outputs[8][64], operators[64][32];
    int input_types[8], output_types[8];
    int input_count, output_count, node_count;
    int64_t elements;
} model;

static uint64_t varint(const uint8_t **at, const uint8_t *end) {
    uint64_t value = 0;
    int shift = 0;
    while (*at < end) {
        uint8_t byte = *(*at)++;
        value |= (uint64_t)(byte & 127) << shift;
        if (byte < 128)
            break;
        shift += 7;
    }
    return value;
}

/* Reads the next field: returns its number, or 0 at the end. Fields with bytes give a part of the message. */
static int field(const uint8_t **at, const uint8_t *end, uint64_t *number, const uint8_t **part, const uint8_t **part_end) {
    uint64_t key;
    if (*at >= end)
        return 0;
    key = varint(at, end);
    *part = *part_end = NULL;
    if ((key & 7) == 0) {
        *number = varint(at, end);
    } else if ((key & 7) == 2) {
        uint64_t size = varint(at, end);
        *part = *at;
        *part_end = *at += size;
    } else {
        *at += (key & 7) == 5 ? 4 : 8;
    }
    return (int)(key >> 3);
}

#define EACH(at, end) \
    for (const uint8_t *cursor_ = (at), *end_ = (end), *part, *part_end; \
         (id = field(&cursor_, end_, &number, &part, &part_end)) != 0;)

static void text(char *to, size_t room, const uint8_t *from, const uint8_t *end) {
    size_t size = (size_t)(end - from) < room - 1 ? (size_t)(end - from) : room - 1;
    memcpy(to, from, size);
    to[size] = 0;
}

/* Reads ValueInfoProto: name, element type, number of elements. */
static int64_t port(char *name, int *type, const uint8_t *from, const uint8_t *end) {
    int64_t elements = 1;
    uint64_t number = 0;
    int id;
    EACH(from, end) {
        if (id == 1)
            text(name, 64, part, part_end);
        if (id != 2)
            continue;
        EACH(part, part_end) if (id == 1) EACH(part, part_end) {
            if (id == 1)
                *type = (int)number;
            if (id == 2)
                EACH(part, part_end) if (id == 1) EACH(part, part_end) if (id == 1) elements *= (int64_t)number;
        }
    }
    return elements;
}

SHARED void read_model(model *m, const void *bytes, size_t size) {
    const uint8_t *from = bytes, *end = from + size;
    uint64_t number = 0;
    int id;
    memset(m, 0, sizeof *m);
    EACH(from, end) if (id == 7) EACH(part, part_end) {
        if (id == 1 && m->node_count < 64) {
            char *operator = m->operators[m->node_count++];
            EACH(part, part_end) if (id == 4) text(operator, 32, part, part_end);
        }
        if (id == 11 && m->input_count < 8) {
            int64_t elements = port(m->inputs[m->input_count], &m->input_types[m->input_count], part, part_end);
            if (m->input_count++ == 0)
                m->elements = elements;
        }
        if (id == 12 && m->output_count < 8) {
            port(m->outputs[m->output_count], &m->output_types[m->output_count], part, part_end);
            m->output_count++;
        }
    }
}

#endif

/* -- Objects: a table, or a table of destructors and an implementation with a table -------------------------------- */

typedef struct object {
    void **table;
    struct object *implementation;
    void *data; /* of the parent */
    size_t size;
    int number;
    char name[64];
} object;

#ifndef CUDART

static void delete_nothing(void *self) { (void)self; }

static void delete_public(object *self) {
    free(self->implementation);
    free(self);
}

static void *destructors[] = {(void *)delete_nothing, (void *)delete_public};

SHARED object *make(void **table) {
    object *outer = calloc(1, sizeof *outer);
    outer->table = destructors;
    outer->implementation = calloc(1, sizeof *outer);
    outer->implementation->table = table;
    return outer;
}

/* Network: the model, which the parser sets. */
SHARED model *model_of(object *network) { return network->implementation->data; }

#endif

#ifdef LIBRARY

static int layer_count(object *self) {
    model *m = self->data;
    return m ? m->node_count + mode("STUB_TENSORRT", "tables") : 0;
}

/* Layers and tensors are made once for each question, and not freed: tests are short. */
static int layer_kind(object *self) { return self->number; }
static const char *object_name(object *self) { return self->name; }
static int tensor_type(object *self) { return self->number; }
static void *layer_table[5], *tensor_table[7];

static object *named(void **table, const char *name, int number) {
    object *outer = make(table);
    snprintf(outer->implementation->name, 64, "%s", name);
    outer->implementation->number = number;
    return outer;
}

/* Element types of ONNX as the library numbers them. */
static int type_of(int onnx) {
    static const int types[] = {-1, 0, 5, 2, -1, -1, 3, 8, -1, 4, 1};
    return onnx > 0 && onnx < 11 ? types[onnx] : onnx == 16 ? 7 : -1;
}

static object *network_layer(object *self, int index) {
    model *m = self->data;
    return named(layer_table, m->operators[index % 64], index);
}
static int input_count(object *self) { return self->data ? ((model *)self->data)->input_count : 0; }
static int output_count(object *self) { return self->data ? ((model *)self->data)->output_count : 0; }
static object *network_input(object *self, int index) {
    model *m = self->data;
    return named(tensor_table, m->inputs[index], type_of(m->input_types[index]));
}
static object *network_output(object *self, int index) {
    model *m = self->data;
    return named(tensor_table, m->outputs[index], type_of(m->output_types[index]));
}
static void *network_table[18];

/* Settings: the capability is `number`, the flags are `size`. */
static void clear_flag(object *self, int flag) { self->size &= ~(1u << flag); }
static void set_flag(object *self, int flag) { self->size |= 1u << flag; }
static char get_flag(object *self, int flag) { return self->size >> flag & 1; }
static int add_profile(object *self, object *profile) {
    (void)self;
    (void)profile;
    note("profile");
    return 0;
}
static void set_pool_limit(object *self, int pool, size_t bytes) {
    (void)self;
    note("pool %d %zu", pool, bytes);
}
static int level = 3;
static void set_level(object *self, int to) {
    (void)self;
    level = to;
}
static int get_level(object *self) {
    (void)self;
    return level;
}
static char set_count(object *self, int count) {
    self->number = count > 0 ? 1 : 0;
    return 1;
}
static int get_count(object *self) { return self->number > 0; }
static char set_capability(object *self, int capability, int index) {
    (void)index;
    if (capability == 90)
        return 0;
    self->number = capability;
    return 1;
}
static int get_capability(object *self, int index) {
    (void)index;
    return self->number;
}
static void *config_table[59];

static char set_dims(object *self, const char *name, int selector, const void *sizes) {
    (void)self;
    (void)sizes;
    note("range %s %d", name, selector);
    return 1;
}
static char is_valid(object *self) {
    (void)self;
    return 1;
}
static void *profile_table[8];

static void *memory_data(object *self) { return self->data; }
static size_t memory_size(object *self) { return self->size; }
static void *memory_table[4];

static object *create_config(object *self) {
    object *made = make(config_table);
    (void)self;
    made->implementation->size = 1 << 6; /* TF32 is allowed until it is forbidden */
    return made;
}
static object *create_network(object *self, uint32_t flags) {
    (void)self;
    (void)flags;
    return make(network_table);
}
static object *create_profile(object *self) {
    (void)self;
    return make(profile_table);
}
static void *log_of;
static object *build(object *self, object *network, object *config) {
    object *made = make(memory_table);
    (void)self;
    note("build %d", config->implementation->number);
    if (mode("STUB_TENSORRT", "refuse")) {
        void (**table)(void *, int, const char *) = *(void **)log_of;
        table[4](log_of, 1, "the stub builds nothing");
        return NULL;
    }
    made->implementation->data = malloc(sizeof(model));
    made->implementation->size = sizeof(model);
    memcpy(made->implementation->data, model_of(network), sizeof(model));
    return made;
}
static void *builder_table[12];

/* Run time. */
typedef struct context {
    model m;
    float *input, *output;
    int64_t elements;
} context;

typedef struct dims {
    int32_t count;
    int64_t sizes[8];
} dims;

static char set_shape(object *self, const char *name, const dims *dims) {
    context *c = self->data;
    note("shape %s", name);
    if (strcmp(name, c->m.inputs[0]) == 0) {
        c->elements = 1;
        for (int i = 0; i < dims->count; i++)
            c->elements *= dims->sizes[i];
    }
    return 1;
}
static char set_address(object *self, const char *name, void *address) {
    context *c = self->data;
    note("address %s", name);
    if (strcmp(name, c->m.inputs[0]) == 0)
        c->input = address;
    if (strcmp(name, c->m.outputs[0]) == 0)
        c->output = address;
    return 1;
}
static char enqueue(object *self, void *stream) {
    context *c = self->data;
    (void)stream;
    note("enqueue");
    for (int64_t i = 0; i < c->elements; i++)
        c->output[i] = c->input[i] > 0 ? c->input[i] : 0;
    return 1;
}
static void *context_table[37];

static object *create_context(object *self, int strategy) {
    object *made = make(context_table);
    context *c = calloc(1, sizeof *c);
    (void)strategy;
    note("context");
    c->m = *(model *)self->data;
    c->elements = c->m.elements;
    made->implementation->data = c;
    return made;
}
static void *engine_table[6];

static object *deserialize(object *self, const void *bytes, size_t size) {
    object *made = make(engine_table);
    (void)self;
    note("deserialize");
    if (size != sizeof(model))
        return NULL;
    made->implementation->data = malloc(size);
    memcpy(made->implementation->data, bytes, size);
    return made;
}
static void *runtime_table[4];

__attribute__((constructor)) static void start(void) {
    if (mode("STUB_TENSORRT", "crash"))
        abort();
    layer_table[2] = (void *)layer_kind;
    layer_table[4] = (void *)object_name;
    tensor_table[3] = (void *)object_name;
    tensor_table[6] = (void *)tensor_type;
    network_table[12] = (void *)layer_count;
    network_table[13] = (void *)network_layer;
    network_table[14] = (void *)input_count;
    network_table[15] = (void *)network_input;
    network_table[16] = (void *)output_count;
    network_table[17] = (void *)network_output;
    config_table[8] = (void *)clear_flag;
    config_table[9] = (void *)set_flag;
    config_table[10] = (void *)get_flag;
    config_table[23] = (void *)add_profile;
    config_table[32] = (void *)set_pool_limit;
    config_table[36] = (void *)set_level;
    config_table[37] = (void *)get_level;
    config_table[55] = (void *)set_count;
    config_table[56] = (void *)get_count;
    config_table[57] = (void *)set_capability;
    config_table[58] = (void *)get_capability;
    profile_table[2] = (void *)set_dims;
    profile_table[7] = (void *)is_valid;
    memory_table[2] = (void *)memory_data;
    memory_table[3] = (void *)memory_size;
    builder_table[5] = (void *)create_config;
    builder_table[6] = (void *)create_network;
    builder_table[7] = (void *)create_profile;
    builder_table[11] = (void *)build;
    context_table[20] = (void *)set_shape;
    context_table[23] = (void *)set_address;
    context_table[36] = (void *)enqueue;
    engine_table[5] = (void *)create_context;
    runtime_table[3] = (void *)deserialize;
}

int getInferLibVersion(void) {
    return mode("STUB_TENSORRT", "version") ? 10800 : mode("STUB_TENSORRT", "full") ? 101600 : 10701;
}

void *createInferBuilder_INTERNAL(void *logger, int version) {
    log_of = logger;
    return version == 10701 ? make(builder_table) : NULL;
}

void *createInferRuntime_INTERNAL(void *logger, int version) {
    log_of = logger;
    return version == 10701 ? make(runtime_table) : NULL;
}

#endif

#ifdef PARSER

typedef struct parser {
    void **table;
    object *network;
    model m;
    int refused;
} parser;

typedef struct parser_error {
    void **table;
    int node;
    char operator[32];
} parser_error;

static const char *description(parser_error *self) {
    (void)self;
    return "the stub does not know this operator";
}
static int error_node(parser_error *self) { return self->node; }
static const char *error_name(parser_error *self) {
    (void)self;
    return "";
}
static const char *error_operator(parser_error *self) { return self->operator; }
static void *error_table[8];

static char parse(parser *self, const void *bytes, size_t size, const char *path) {
    (void)path;
    read_model(&self->m, bytes, size);
    self->network->implementation->data = &self->m;
    self->refused = -1;
    for (int i = 0; i < self->m.node_count; i++)
        if (strcmp(self->m.operators[i], "NoSuchOperator") == 0 || strcmp(self->m.operators[i], "Tan") == 0)
            self->refused = i;
    return self->refused < 0;
}
static int error_count(parser *self) { return self->refused >= 0; }
static parser_error *error(parser *self, int index) {
    parser_error *made = calloc(1, sizeof *made);
    (void)index;
    made->table = error_table;
    made->node = self->refused;
    memcpy(made->operator, self->m.operators[self->refused], 32);
    return made;
}
static void *parser_table[8];

int getNvOnnxParserVersion(void) { return 200; }

void *createNvOnnxParser_INTERNAL(void *network, void *logger, int version) {
    parser *made = calloc(1, sizeof *made);
    (void)logger;
    (void)version;
    parser_table[0] = (void *)parse;
    parser_table[3] = (void *)error_count;
    parser_table[4] = (void *)error;
    parser_table[7] = (void *)free;
    error_table[1] = (void *)description;
    error_table[5] = (void *)error_node;
    error_table[6] = (void *)error_name;
    error_table[7] = (void *)error_operator;
    made->table = parser_table;
    made->network = network;
    made->refused = -1;
    return made;
}

#endif

#ifdef CUDART

int cudaGetDeviceCount(int *count) {
    *count = 1;
    return mode("STUB_CUDA", "none") ? 100 : 0;
}
int cudaGetDevice(int *device) {
    *device = 0;
    return 0;
}
int cudaSetDevice(int device) { return device == 0 ? 0 : 101; }
int cudaDeviceGetAttribute(int *value, int attribute, int device) {
    int capability = mode("STUB_CUDA", "hopper") ? 90 : 89;
    *value = attribute == 75 ? capability / 10 : capability % 10;
    return device == 0 ? 0 : 101;
}
int cudaMemGetInfo(size_t *free_bytes, size_t *total) {
    *free_bytes = *total = (size_t)8 << 30;
    return 0;
}
int cudaMalloc(void **to, size_t bytes) {
    note("malloc %zu", bytes);
    if (mode("STUB_CUDA", "memory") && bytes >= 65536)
        return 2;
    *to = aligned_alloc(256, (bytes + 255) / 256 * 256);
    return 0;
}
int cudaFree(void *address) {
    note("free");
    free(address);
    return 0;
}
int cudaHostAlloc(void **to, size_t bytes, unsigned flags) {
    (void)flags;
    *to = aligned_alloc(256, (bytes + 255) / 256 * 256);
    return 0;
}
int cudaFreeHost(void *address) {
    free(address);
    return 0;
}
int cudaMemcpyAsync(void *to, const void *from, size_t bytes, int kind, void *stream) {
    (void)stream;
    note("copy %s %zu", kind == 1 ? "in" : "out", bytes);
    memcpy(to, from, bytes);
    return 0;
}
int cudaStreamCreateWithFlags(void **stream, unsigned flags) {
    (void)flags;
    note("stream");
    *stream = malloc(1);
    return 0;
}
int cudaStreamDestroy(void *stream) {
    free(stream);
    return 0;
}
int cudaStreamSynchronize(void *stream) {
    static int count;
    (void)stream;
    note("synchronize");
    /* The first call ends the copy of the input, the second one a run. */
    return mode("STUB_CUDA", "lost") && ++count >= 2 ? 719 : 0;
}
const char *cudaGetErrorName(int status) {
    return status == 719 ? "cudaErrorLaunchFailure" : status == 2 ? "cudaErrorMemoryAllocation" : "cudaErrorNoDevice";
}

#endif

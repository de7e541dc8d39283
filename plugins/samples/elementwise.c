/* elementwise: a complete byoc backend in one C file.
 *
 * Supports elementwise operators on float32 with numpy's broadcasting. To add an operator, add an entry to OPERATORS.
 * `compile` stores the graph of the region as the blob; `load` translates it to a list of steps, which `run` executes.
 * `query` writes these steps as C, for exported programs.
 */
#include "byoc_json.h"
#include "byoc_plugin.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NAME "elementwise"

/* -- Operators ----------------------------------------------------------------------------------------------------- */

typedef struct {
    const char *name;
    double (*one)(double);         /* function of a unary operator, else NULL */
    double (*two)(double, double); /* function of a binary operator, else NULL */
    const char *c;                 /* C expression of doubles a and b, for exported programs; or NULL */
} operator_t;

static double relu(double x) { return x < 0.0 ? 0.0 : x; }
static double negative(double x) { return -x; }
static double sigmoid(double x) { return 1.0 / (1.0 + exp(-x)); }
static double add(double x, double y) { return x + y; }
static double subtract(double x, double y) { return x - y; }
static double multiply(double x, double y) { return x * y; }
static double divide(double x, double y) { return x / y; }
/* The maximum and the minimum propagate NaN. */
static double maximum(double x, double y) { return isnan(x) || x > y ? x : y; }
static double minimum(double x, double y) { return isnan(x) || x < y ? x : y; }

static const operator_t OPERATORS[] = {
    {"nn.relu", relu, NULL, "a < 0.0 ? 0.0 : a"},
    {"negative", negative, NULL, "-a"},
    {"abs", fabs, NULL, "fabs(a)"},
    {"exp", exp, NULL, "exp(a)"},
    {"sqrt", sqrt, NULL, "sqrt(a)"},
    {"tanh", tanh, NULL, "tanh(a)"},
    {"sigmoid", sigmoid, NULL, "1.0 / (1.0 + exp(-a))"},
    {"add", NULL, add, "a + b"},
    {"subtract", NULL, subtract, "a - b"},
    {"multiply", NULL, multiply, "a * b"},
    {"divide", NULL, divide, "a / b"},
    {"maximum", NULL, maximum, "a != a || a > b ? a : b"},
    {"minimum", NULL, minimum, "a != a || a < b ? a : b"},
};
enum { OPERATOR_COUNT = sizeof OPERATORS / sizeof OPERATORS[0], MAX_DIMS = 8 };

static const operator_t *find_operator(byoc_json name) {
    for (size_t i = 0; i < OPERATOR_COUNT; i++) {
        if (byoc_json_is(name, OPERATORS[i].name)) return &OPERATORS[i];
    }
    return NULL;
}

static int32_t fail(byoc_call *call, const char *message) {
    call->host->fail(call, message, NULL);
    return BYOC_ERROR;
}

/* -- Compile time -------------------------------------------------------------------------------------------------- */

static int32_t describe(void *self, byoc_call *call) {
    char text[128 + 64 * OPERATOR_COUNT]; /* names of at most 58 characters */
    int length = snprintf(text, sizeof text, "{\"version\": 1, \"about\": \"elementwise operators on float32\", \"operators\": [");
    (void)self;
    for (size_t i = 0; i < OPERATOR_COUNT; i++) {
        length += snprintf(text + length, sizeof text - (size_t)length, "%s\"%.58s\"", i ? ", " : "", OPERATORS[i].name);
    }
    length += snprintf(text + length, sizeof text - (size_t)length, "]}");
    call->host->answer(call, text, (size_t)length);
    return BYOC_OK;
}

/* Fields of a node that `judge` reads, and their indices. */
enum { OP, COMPOSITE, OUTPUTS, NODE_FIELDS };
static const char *const NODE_KEYS[NODE_FIELDS] = {"op", "composite", "outputs"};

static const char *side(const byoc_json *node) { return byoc_json_there(node[OP]) ? "output" : "input"; }

/* Checks the result types of a node. Returns NULL if they are supported, else a refusal code, with `detail` filled in. */
static const char *refusal(const byoc_json *node, char *detail, size_t size) {
    int number = 0;
    byoc_json type = byoc_json_first(node[OUTPUTS]);
    if (byoc_json_there(node[COMPOSITE])) {
        snprintf(detail, size, "expected single operators, found a composite");
        return BYOC_UNSUPPORTED_OP;
    }
    for (; byoc_json_there(type); type = byoc_json_next(type), number++) {
        size_t rank = byoc_json_count(byoc_json_get(type, "dims"));
        if (!byoc_json_is(byoc_json_get(type, "dtype"), "float32")) {
            char dtype[32];
            byoc_json_text(byoc_json_get(type, "dtype"), dtype, sizeof dtype);
            snprintf(detail, size, "%s %d: expected float32, found %s", side(node), number, dtype);
            return BYOC_UNSUPPORTED_DTYPE;
        }
        if (rank > MAX_DIMS) {
            snprintf(detail, size, "%s %d: expected at most %d dimensions, found %zu", side(node), number, MAX_DIMS, rank);
            return BYOC_UNSUPPORTED_SHAPE;
        }
    }
    return NULL;
}

static int32_t judge(void *self, byoc_call *call, const byoc_candidate *const *candidates, size_t count) {
    (void)self;
    for (size_t i = 0; i < count; i++) {
        byoc_json graph = byoc_json_of(candidates[i]->graph);
        byoc_json node = byoc_json_first(byoc_json_get(graph, "nodes"));
        const char *code = NULL;
        char detail[128];
        while (byoc_json_there(node) && code == NULL) {
            byoc_json fields[NODE_FIELDS];
            node = byoc_json_next_fields(node, NODE_KEYS, fields, NODE_FIELDS);
            code = refusal(fields, detail, sizeof detail);
        }
        if (code != NULL) {
            call->host->refuse(call, i, code, detail, NULL);
        } else {
            call->host->support(call, i);
        }
    }
    return BYOC_OK;
}

static int32_t compile(void *self, byoc_call *call, const byoc_region *region) {
    byoc_compiled result = {0};
    (void)self;
    result.struct_size = sizeof result;
    result.blob = region->graph;
    result.blob_size = strlen(region->graph);
    result.loader = NAME;
    result.source_language = "json";
    result.source = region->graph;
    call->host->compiled(call, &result);
    return BYOC_OK;
}

/* -- Run time ------------------------------------------------------------------------------------------------------ */

typedef struct {
    int64_t dims[MAX_DIMS];
    size_t ndim;
    size_t count; /* number of elements */
} shape_t;

/* Memory of a node's value. */
typedef struct {
    enum { INPUT, CONSTANT, WORKSPACE, OUTPUT } place;
    size_t index; /* index of the input, constant or output, or byte offset in the workspace */
    shape_t shape;
} value_t;

typedef struct {
    const operator_t *operator;
    size_t operands[2], result; /* indices of values */
} step_t;

typedef struct {
    value_t *values;
    size_t value_count;
    step_t *steps;
    size_t step_count;
    shape_t *inputs;
    size_t input_count;
    size_t *outputs; /* indices of values */
    size_t output_count;
    const byoc_constant **constants;
    size_t constant_count;
    size_t workspace;
    const byoc_host *host;
} region_t;

/* Reads a type. Returns 0 if this backend does not support it. */
static int read_shape(byoc_json type, shape_t *shape) {
    byoc_json dim = byoc_json_first(byoc_json_get(type, "dims"));
    if (!byoc_json_is(byoc_json_get(type, "dtype"), "float32")) return 0;
    shape->ndim = 0;
    shape->count = 1;
    for (; byoc_json_there(dim); dim = byoc_json_next(dim)) {
        int64_t size = byoc_json_int(dim, -1);
        if (size < 0 || shape->ndim == MAX_DIMS) return 0;
        if (size != 0 && shape->count > ((size_t)1 << 40) / (size_t)size) return 0;
        shape->dims[shape->ndim++] = size;
        shape->count *= (size_t)size;
    }
    return 1;
}

static int same_shape(const shape_t *a, const shape_t *b) {
    return a->ndim == b->ndim && memcmp(a->dims, b->dims, a->ndim * sizeof a->dims[0]) == 0;
}

/* Tests whether `from` broadcasts to `to`: aligned at the last dimension, each dimension is 1 or equal. */
static int broadcasts(const shape_t *from, const shape_t *to) {
    if (from->ndim > to->ndim) return 0;
    for (size_t i = 0; i < from->ndim; i++) {
        int64_t dim = from->dims[i];
        if (dim != 1 && dim != to->dims[to->ndim - from->ndim + i]) return 0;
    }
    return 1;
}

static void release(void *self) {
    region_t *region = self;
    if (region == NULL) return;
    for (size_t i = 0; i < region->constant_count; i++) region->host->constant_release(region->constants[i]);
    free(region->values);
    free(region->steps);
    free(region->inputs);
    free(region->outputs);
    free(region->constants);
    free(region);
}

/* Reads node `number` into the region. Returns NULL, or an error message. */
static const char *read_node(region_t *region, byoc_json node, size_t number) {
    value_t *value = &region->values[number];
    byoc_json input = byoc_json_get(node, "input"), constant = byoc_json_get(node, "constant");
    if (byoc_json_count(byoc_json_get(node, "outputs")) != 1 ||
        !read_shape(byoc_json_first(byoc_json_get(node, "outputs")), &value->shape)) {
        return "the blob has a value that is not a float32 tensor with static dimensions";
    }
    if (byoc_json_there(input)) {
        value->place = INPUT;
        value->index = (size_t)byoc_json_int(input, -1);
        if (value->index >= region->input_count) return "the blob refers to an unknown input";
        if (!same_shape(&value->shape, &region->inputs[value->index])) return "the blob refers to an input of a different type";
        return NULL;
    }
    if (byoc_json_there(constant)) {
        byoc_tensor tensor;
        value->place = CONSTANT;
        value->index = (size_t)byoc_json_int(constant, -1);
        if (value->index >= region->constant_count) return "the blob refers to an unknown constant";
        if (region->host == NULL) return NULL; /* an exported program has no handles */
        region->host->constant_tensor(region->constants[value->index], &tensor);
        if (tensor.dtype.code != 2 || tensor.dtype.bits != 32 || (size_t)tensor.ndim != value->shape.ndim ||
            (tensor.ndim > 0 && memcmp(tensor.shape, value->shape.dims, (size_t)tensor.ndim * sizeof *tensor.shape) != 0)) {
            return "the blob refers to a constant of a different type";
        }
        return NULL;
    }
    step_t *step = &region->steps[region->step_count];
    size_t wanted, given = byoc_json_count(byoc_json_get(node, "inputs"));
    step->operator= find_operator(byoc_json_get(node, "op"));
    if (step->operator== NULL) return "the blob has an operator that " NAME " does not support";
    wanted = step->operator->two != NULL ? 2 : 1;
    if (given != wanted) return "the blob has an operator with the wrong number of operands";
    for (size_t i = 0; i < wanted; i++) {
        byoc_json operand = byoc_json_at(byoc_json_get(node, "inputs"), i);
        size_t from = (size_t)byoc_json_int(byoc_json_at(operand, 0), -1);
        if (from >= number || byoc_json_int(byoc_json_at(operand, 1), -1) != 0) {
            return "the blob has an operator with an unknown operand";
        }
        if (!broadcasts(&region->values[from].shape, &value->shape)) return "the blob has operands that do not broadcast";
        step->operands[i] = from;
    }
    if (wanted == 1) step->operands[1] = step->operands[0];
    step->result = number;
    region->step_count++;
    /* Results are in the workspace; read_region changes those that are outputs. */
    value->place = WORKSPACE;
    return NULL;
}

static const char *read_region(region_t *region, byoc_json graph) {
    byoc_json item = byoc_json_first(byoc_json_get(graph, "inputs"));
    for (size_t i = 0; i < region->input_count; i++, item = byoc_json_next(item)) {
        if (!read_shape(byoc_json_get(item, "type"), &region->inputs[i])) {
            return "the blob has an input that is not a float32 tensor with static dimensions";
        }
    }
    item = byoc_json_first(byoc_json_get(graph, "nodes"));
    for (size_t i = 0; i < region->value_count; i++, item = byoc_json_next(item)) {
        const char *problem = read_node(region, item, i);
        if (problem != NULL) return problem;
    }
    item = byoc_json_first(byoc_json_get(graph, "outputs"));
    for (size_t i = 0; i < region->output_count; i++, item = byoc_json_next(item)) {
        size_t from = (size_t)byoc_json_int(byoc_json_at(item, 0), -1);
        if (from >= region->value_count || byoc_json_int(byoc_json_at(item, 1), -1) != 0) {
            return "the blob has an unknown output";
        }
        region->outputs[i] = from;
        if (region->values[from].place == WORKSPACE) {
            region->values[from].place = OUTPUT;
            region->values[from].index = i;
        }
    }
    for (size_t i = 0; i < region->value_count; i++) {
        if (region->values[i].place != WORKSPACE) continue;
        region->values[i].index = region->workspace;
        region->workspace += (region->values[i].shape.count * sizeof(float) + 63) / 64 * 64;
    }
    return NULL;
}

static int32_t prepare(void *self, byoc_call *call, const byoc_dims *inputs, size_t count) {
    const region_t *region = self;
    if (count != region->input_count) return fail(call, "the number of inputs differs from the compiled region's");
    for (size_t i = 0; i < count; i++) {
        const shape_t *wanted = &region->inputs[i];
        if (inputs[i].count != wanted->ndim ||
            (wanted->ndim > 0 && memcmp(inputs[i].data, wanted->dims, wanted->ndim * sizeof wanted->dims[0]) != 0)) {
            return fail(call, "the dimensions of an input differ from those of the compiled region");
        }
    }
    for (size_t i = 0; i < region->output_count; i++) {
        const shape_t *shape = &region->values[region->outputs[i]].shape;
        call->host->output(call, shape->dims, shape->ndim, 1);
    }
    call->host->prepared(call, region->workspace, 0);
    return BYOC_OK;
}

static float *data_of(const region_t *region, const byoc_run *run, size_t number) {
    const value_t *value = &region->values[number];
    byoc_tensor tensor;
    switch (value->place) {
    case INPUT: tensor = run->inputs[value->index]; break;
    case CONSTANT: region->host->constant_tensor(region->constants[value->index], &tensor); break;
    case OUTPUT: tensor = run->outputs[value->index]; break;
    default: return (float *)((char *)run->workspace + value->index);
    }
    return (float *)((char *)tensor.data + tensor.byte_offset);
}

/* Computes the strides of an operand along the dimensions of the result; 0 for dimensions that broadcast. */
static void strides_of(const shape_t *operand, const shape_t *result, size_t *strides) {
    size_t step = 1, missing = result->ndim - operand->ndim;
    memset(strides, 0, result->ndim * sizeof *strides);
    for (size_t i = operand->ndim; i-- > 0;) {
        strides[missing + i] = operand->dims[i] == 1 ? 0 : step;
        step *= (size_t)operand->dims[i];
    }
}

static void do_step(const region_t *region, const byoc_run *run, const step_t *step) {
    const shape_t *shape = &region->values[step->result].shape;
    const float *a = data_of(region, run, step->operands[0]), *b = data_of(region, run, step->operands[1]);
    float *result = data_of(region, run, step->result);
    size_t index[MAX_DIMS] = {0}, a_strides[MAX_DIMS], b_strides[MAX_DIMS];
    strides_of(&region->values[step->operands[0]].shape, shape, a_strides);
    strides_of(&region->values[step->operands[1]].shape, shape, b_strides);
    for (size_t i = 0; i < shape->count; i++) {
        result[i] = (float)(step->operator->two != NULL ? step->operator->two(*a, *b) : step->operator->one(*a));
        for (size_t axis = shape->ndim; axis-- > 0;) {
            a += a_strides[axis];
            b += b_strides[axis];
            if (++index[axis] < (size_t)shape->dims[axis]) break;
            a -= a_strides[axis] * index[axis];
            b -= b_strides[axis] * index[axis];
            index[axis] = 0;
        }
    }
}

static int32_t run(void *self, byoc_call *call, const byoc_run *run) {
    const region_t *region = self;
    if (run->workspace_size < region->workspace) return fail(call, "the workspace is smaller than requested by prepare");
    for (size_t i = 0; i < region->step_count; i++) do_step(region, run, &region->steps[i]);
    /* Copies outputs that are an input, a constant or another output. */
    for (size_t i = 0; i < region->output_count; i++) {
        const value_t *value = &region->values[region->outputs[i]];
        if ((value->place == OUTPUT && value->index == i) || value->shape.count == 0) continue;
        memcpy((char *)run->outputs[i].data + run->outputs[i].byte_offset, data_of(region, run, region->outputs[i]),
               value->shape.count * sizeof(float));
    }
    return BYOC_OK;
}

static const byoc_executable EXECUTABLE = {sizeof EXECUTABLE, prepare, run, NULL, release};

/* Tests whether the types from the host match the blob, because `prepare` receives only dimensions. The types are in the
 * load option "region", which a host may omit. */
static int same_types(byoc_json types, const shape_t *const *wanted, size_t count) {
    byoc_json type = byoc_json_first(types);
    if (byoc_json_count(types) != count) return 0;
    for (size_t i = 0; i < count; i++, type = byoc_json_next(type)) {
        shape_t given;
        if (!read_shape(type, &given) || !same_shape(&given, wanted[i])) return 0;
    }
    return 1;
}

static const char *check_signature(const region_t *region, const char *options) {
    byoc_json told = byoc_json_get(byoc_json_of(options), "region");
    const size_t most = region->input_count > region->output_count ? region->input_count : region->output_count;
    const shape_t **wanted = calloc(most + 1, sizeof *wanted);
    int same;
    if (wanted == NULL) return "out of memory";
    for (size_t i = 0; i < region->input_count; i++) wanted[i] = &region->inputs[i];
    same = same_types(byoc_json_get(told, "inputs"), wanted, region->input_count);
    for (size_t i = 0; i < region->output_count; i++) wanted[i] = &region->values[region->outputs[i]].shape;
    same = same && same_types(byoc_json_get(told, "outputs"), wanted, region->output_count);
    free(wanted);
    return same || !byoc_json_there(told) ? NULL : "the tensor types differ from the compiled region's; compile the model again";
}

/* Allocates the tables of a region. Returns NULL, or an error message. */
static const char *allocate(region_t *region, byoc_json graph, size_t constant_count) {
    region->value_count = byoc_json_count(byoc_json_get(graph, "nodes"));
    region->input_count = byoc_json_count(byoc_json_get(graph, "inputs"));
    region->output_count = byoc_json_count(byoc_json_get(graph, "outputs"));
    region->values = calloc(region->value_count + 1, sizeof *region->values);
    region->steps = calloc(region->value_count + 1, sizeof *region->steps);
    region->inputs = calloc(region->input_count + 1, sizeof *region->inputs);
    region->outputs = calloc(region->output_count + 1, sizeof *region->outputs);
    region->constants = calloc(constant_count + 1, sizeof *region->constants);
    return region->values && region->steps && region->inputs && region->outputs && region->constants ? NULL
                                                                                                     : "out of memory";
}

static int32_t load(void *self, byoc_call *call, const byoc_load *request) {
    byoc_json graph = byoc_json_parse(request->blob, request->blob_size);
    region_t *region = calloc(1, sizeof *region);
    const char *problem = "out of memory";
    (void)self;
    if (!byoc_json_is(byoc_json_get(graph, "symbol"), request->symbol)) {
        free(region);
        return fail(call, "expected the graph of this region, found that of another");
    }
    if (region == NULL) return fail(call, problem);
    region->host = call->host;
    problem = allocate(region, graph, request->constant_count);
    if (problem == NULL) {
        for (size_t i = 0; i < request->constant_count; i++) {
            region->constants[i] = call->host->constant_retain(request->constants[i]);
        }
        region->constant_count = request->constant_count;
        problem = read_region(region, graph);
        if (problem == NULL) problem = check_signature(region, request->options);
    }
    if (problem != NULL) {
        release(region);
        return fail(call, problem);
    }
    call->host->loaded(call, &EXECUTABLE, region);
    return BYOC_OK;
}

/* Reports that a blob contains no native code: it is a graph. */
static int32_t query_loader(void *self, byoc_call *call, const char *key, const void *data, size_t size) {
    (void)self, (void)data, (void)size;
    if (strcmp(key, "blob.native") != 0) return BYOC_UNKNOWN_KEY;
    call->host->answer(call, "false", 5);
    return BYOC_OK;
}

static const byoc_loader LOADER = {sizeof LOADER, load, query_loader, NULL};

/* -- Exported programs --------------------------------------------------------------------------------------------- */

/* Growable string. */
typedef struct {
    char *at;
    size_t size, room;
    int failed; /* set if an allocation failed */
} text_t;

/* Appends formatted text of less than 1024 bytes. */
static void append(text_t *text, const char *format, ...) {
    va_list list;
    int length;
    if (text->size + 1024 > text->room && !text->failed) {
        char *grown = realloc(text->at, 2 * text->room + 1024);
        text->failed = grown == NULL;
        if (grown != NULL) {
            text->at = grown;
            text->room = 2 * text->room + 1024;
        }
    }
    if (text->failed) return;
    va_start(list, format);
    length = vsnprintf(text->at + text->size, text->room - text->size, format, list);
    va_end(list);
    if (length < 0 || length >= 1024) {
        text->failed = 1;
        return;
    }
    text->size += (size_t)length;
}

/* Appends a pointer to a value, as a C expression. */
static void append_pointer(text_t *text, const region_t *region, size_t number) {
    const value_t *value = &region->values[number];
    switch (value->place) {
    case INPUT: append(text, "in[%zu]", value->index); break;
    case CONSTANT: append(text, "constants[%zu]", value->index); break;
    case OUTPUT: append(text, "out[%zu]", value->index); break;
    default: append(text, "(void *)((char *)work + %zu)", value->index);
    }
}

/* Appends the index of an element of an operand. */
static void append_index(text_t *text, const shape_t *operand, const shape_t *result) {
    size_t strides[MAX_DIMS];
    strides_of(operand, result, strides);
    append(text, "[0");
    for (size_t axis = 0; axis < result->ndim; axis++) {
        if (strides[axis] != 0) append(text, " + i%zu * %zu", axis, strides[axis]);
    }
    append(text, "]");
}

/* Appends a step. The text is part of a JSON string, so a line ends with the two characters \n. */
static void append_step(text_t *text, const region_t *region, const step_t *step) {
    const shape_t *shape = &region->values[step->result].shape;
    const size_t operands = step->operator->two != NULL ? 2 : 1;
    append(text, "    {\\n        float *result = ");
    append_pointer(text, region, step->result);
    append(text, ";\\n");
    for (size_t i = 0; i < operands; i++) {
        append(text, "        const float *x%zu = ", i);
        append_pointer(text, region, step->operands[i]);
        append(text, ";\\n");
    }
    for (size_t axis = 0; axis < shape->ndim; axis++) {
        append(text, "        for (long i%zu = 0; i%zu < %lld; ++i%zu)\\n", axis, axis, (long long)shape->dims[axis], axis);
    }
    append(text, "        {\\n");
    for (size_t i = 0; i < operands; i++) {
        append(text, "            const double %s = (double)x%zu", i == 0 ? "a" : "b", i);
        append_index(text, &region->values[step->operands[i]].shape, shape);
        append(text, ";\\n");
    }
    append(text, "            result");
    append_index(text, shape, shape);
    append(text, " = (float)(%s);\\n        }\\n    }\\n", step->operator->c);
}

/* Appends the region as the answer to the query. */
static void append_program(text_t *text, const region_t *region, const char *symbol) {
    const char *types = "const void *const *in, void *const *out, const void *const *constants, void *work";
    append(text, "{\"source\": \"#include <math.h>\\n#include <string.h>\\n\\nvoid %s(%s);\\n\\n", symbol, types);
    append(text, "void %s(%s) {\\n    (void)in;\\n    (void)constants;\\n    (void)work;\\n", symbol, types);
    for (size_t i = 0; i < region->step_count; i++) append_step(text, region, &region->steps[i]);
    for (size_t i = 0; i < region->output_count; i++) {
        const value_t *value = &region->values[region->outputs[i]];
        if (value->place == OUTPUT && value->index == i) continue;
        append(text, "    memcpy(out[%zu], ", i);
        append_pointer(text, region, region->outputs[i]);
        append(text, ", %zu);\\n", value->shape.count * sizeof(float));
    }
    append(text, "}\\n\", \"workspace\": %zu}", region->workspace);
}

static int is_identifier(const char *name) {
    if (*name == 0 || (*name >= '0' && *name <= '9')) return 0;
    return strspn(name, "0123456789_abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ") == strlen(name);
}

/* Answers with a region as C99. The constants' values follow the JSON text; the program reads them at run time. */
static int32_t query(void *self, byoc_call *call, const char *key, const void *data, size_t size) {
    region_t region = {0};
    text_t text = {0};
    char symbol[256];
    const char *problem;
    byoc_json request, graph;
    (void)self;
    if (strcmp(key, BYOC_PROGRAM_KEY) != 0) return BYOC_UNKNOWN_KEY;
    if (memchr(data, 0, size) == NULL) return fail(call, "the request is not NUL-terminated");
    request = byoc_json_of(data);
    graph = byoc_json_get(request, "graph");
    byoc_json_text(byoc_json_get(request, "symbol"), symbol, sizeof symbol);
    if (!is_identifier(symbol)) return fail(call, "the symbol is not a C identifier");
    region.constant_count = byoc_json_count(byoc_json_get(request, "constants"));
    problem = allocate(&region, graph, region.constant_count);
    if (problem == NULL) problem = read_region(&region, graph);
    for (size_t i = 0; problem == NULL && i < region.step_count; i++) {
        const operator_t *operator= region.steps[i].operator;
        if (operator->c == NULL && text.size == 0) append(&text, "{\"refused\": \"%s has no C expression\"}", operator->name);
    }
    if (problem == NULL && text.size == 0) append_program(&text, &region, symbol);
    if (problem == NULL && text.failed) problem = "out of memory";
    if (problem == NULL) call->host->answer(call, text.at, text.size);
    free(text.at);
    free(region.values);
    free(region.steps);
    free(region.inputs);
    free(region.outputs);
    free(region.constants);
    return problem == NULL ? BYOC_OK : fail(call, problem);
}

static const byoc_codegen CODEGEN = {sizeof CODEGEN, describe, judge, compile, query, NULL};

/* -- The library --------------------------------------------------------------------------------------------------- */

static int32_t init(byoc_call *call, const char *path, const char *options) {
    (void)path;
    (void)options;
    call->host->register_codegen(call, NAME, &CODEGEN, NULL);
    call->host->register_loader(call, NAME, &LOADER, NULL);
    return BYOC_OK;
}

const byoc_plugin *byoc_plugin_entry(uint32_t host_abi) {
    static const byoc_plugin plugin = {BYOC_ABI, sizeof plugin, NAME, "0.1.0", init};
    return host_abi >= BYOC_ABI ? &plugin : NULL;
}

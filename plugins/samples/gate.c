/* gate: a byoc backend in C with an operator of its own, vendor.gate: x * clip(g, low, 1), with a decomposition. */
#include "byoc_json.h"
#include "byoc_plugin.h"

#include <stdlib.h>
#include <string.h>

#define NAME "gate"

static const char DESCRIPTION[] =
    "{\"version\": 1, \"about\": \"vendor.gate on float32\", \"operators\": [\"vendor.gate\"], \"declares\": [{"
    "\"name\": \"vendor.gate\", \"about\": \"x * clip(g, low, 1)\","
    "\"onnx\": {\"domain\": \"com.vendor\", \"name\": \"Gate\", \"version\": 1},"
    "\"inputs\": [{\"name\": \"x\", \"dtypes\": [\"float32\"], \"dims\": [\"...\", \"c\"]},"
    "             {\"name\": \"g\", \"dtypes\": [\"float32\"], \"dims\": [\"...\", \"c\"]}],"
    "\"outputs\": [{\"dtype\": \"x\", \"dims\": [\"...\", \"c\"]}],"
    "\"attributes\": [{\"name\": \"low\", \"kind\": \"float\", \"default\": 0.0, \"about\": \"least factor\"}],"
    "\"ulps\": 1, \"decomposition\": \"multiply(%x, clip(%g, a_min=$low, a_max=1f))\"}]}";

static int32_t fail(byoc_call *call, const char *message) {
    call->host->fail(call, message, NULL);
    return BYOC_ERROR;
}

static int32_t describe(void *self, byoc_call *call) {
    (void)self;
    call->host->answer(call, DESCRIPTION, sizeof DESCRIPTION - 1);
    return BYOC_OK;
}

/* Takes one operator at a time, on two inputs that are no constants. */
static int32_t judge(void *self, byoc_call *call, const byoc_candidate *const *candidates, size_t count) {
    (void)self;
    for (size_t i = 0; i < count; i++) {
        byoc_json graph = byoc_json_of(candidates[i]->graph);
        if (byoc_json_count(byoc_json_get(graph, "nodes")) > 3) {
            call->host->refuse(call, i, BYOC_SPLIT, "1", NULL);
        } else if (byoc_json_count(byoc_json_get(graph, "inputs")) != 2) {
            call->host->refuse(call, i, BYOC_UNSUPPORTED_SHAPE, "expected two different inputs that are no constants", NULL);
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
    call->host->compiled(call, &result);
    return BYOC_OK;
}

typedef struct {
    int first; /* index of the input x */
    float low;
} gate_t;

static int32_t prepare(void *self, byoc_call *call, const byoc_dims *inputs, size_t count) {
    (void)self;
    if (count != 2) return fail(call, "expected two inputs");
    call->host->output(call, inputs[0].data, inputs[0].count, 1);
    return BYOC_OK;
}

static float *data_of(const byoc_tensor *tensor) { return (float *)((char *)tensor->data + tensor->byte_offset); }

static int32_t run(void *self, byoc_call *call, const byoc_run *run) {
    const gate_t *gate = self;
    const float *x = data_of(&run->inputs[gate->first]), *g = data_of(&run->inputs[1 - gate->first]);
    float *y = data_of(&run->outputs[0]);
    size_t count = 1;
    (void)call;
    for (int32_t i = 0; i < run->outputs[0].ndim; i++) count *= (size_t)run->outputs[0].shape[i];
    for (size_t i = 0; i < count; i++) {
        /* Propagates NaN, as the operator clip does. */
        float factor = g[i] < gate->low ? gate->low : g[i] > 1.0f ? 1.0f : g[i];
        y[i] = x[i] * factor;
    }
    return BYOC_OK;
}

static int32_t load(void *self, byoc_call *call, const byoc_load *request) {
    static const byoc_executable EXECUTABLE = {sizeof EXECUTABLE, prepare, run, NULL, free};
    byoc_json graph = {request->blob, (const char *)request->blob + request->blob_size}, node, input, types, dim;
    gate_t *gate = calloc(1, sizeof *gate);
    (void)self;
    if (gate == NULL) return fail(call, "not enough memory");
    call->host->loaded(call, &EXECUTABLE, gate);
    node = byoc_json_first(byoc_json_get(graph, "nodes"));
    while (byoc_json_there(node) && !byoc_json_is(byoc_json_get(node, "op"), "vendor.gate")) node = byoc_json_next(node);
    input = byoc_json_at(byoc_json_at(byoc_json_get(node, "inputs"), 0), 0);
    node = byoc_json_get(node, "attrs");
    if (!byoc_json_there(node)) return fail(call, "expected a blob with vendor.gate, found another one");
    gate->low = (float)byoc_json_float(byoc_json_get(node, "low"), 0.0);
    /* The node that x comes from is that of input 0 or of input 1. */
    node = byoc_json_at(byoc_json_get(graph, "nodes"), (size_t)byoc_json_int(input, -1));
    gate->first = (int)byoc_json_int(byoc_json_get(node, "input"), -1);
    if (gate->first != 0 && gate->first != 1) return fail(call, "expected a blob whose operator reads the inputs");
    types = byoc_json_get(byoc_json_get(byoc_json_of(request->options), "region"), "inputs");
    input = byoc_json_get(graph, "inputs");
    for (size_t i = 0; i < 2; i++) {
        byoc_json of_blob = byoc_json_get(byoc_json_get(byoc_json_at(input, i), "type"), "dims");
        byoc_json given = byoc_json_at(types, i);
        dim = byoc_json_first(byoc_json_get(given, "dims"));
        if (!byoc_json_is(byoc_json_get(given, "dtype"), "float32")) return fail(call, "expected float32");
        for (of_blob = byoc_json_first(of_blob); byoc_json_there(of_blob) && byoc_json_there(dim); of_blob = byoc_json_next(of_blob)) {
            if (byoc_json_int(of_blob, -1) != byoc_json_int(dim, -2)) return fail(call, "expected the dimensions of the blob");
            dim = byoc_json_next(dim);
        }
        if (byoc_json_there(of_blob) || byoc_json_there(dim)) return fail(call, "expected the dimensions of the blob");
    }
    return BYOC_OK;
}

static int32_t init(byoc_call *call, const char *path, const char *options) {
    static const byoc_codegen CODEGEN = {sizeof CODEGEN, describe, judge, compile, NULL, NULL};
    static const byoc_loader LOADER = {sizeof LOADER, load, NULL, NULL};
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

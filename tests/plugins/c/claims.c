/* Plugin for tests of the conformance run: it declares a layout, open dimensions and an option, and computes regions on
 * the host's reference kernels. The name of its file selects a mistake: claims_layout_zero, ... */
#include "byoc_json.h"
#include "byoc_plugin.h"

#include <stdio.h>

#define NAME "claims"

static char mistake[32];

static int has(const char *name) { return strcmp(mistake, name) == 0; }

static int has_prefix(const char *name) { return strncmp(mistake, name, strlen(name)) == 0; }

/* A pattern whose numbers stand in it. */
static const char HALF[] = "\"half: multiply(add(nn.relu(*), const(1.0)), const(0.5))\"";

/* Returns operators that need something besides operands: others in the region, constants, an option. */
static const char *operators(void) {
    if (has("untested")) return ", \"tanh\"";
    if (has_prefix("beside")) return ", \"reshape\", \"concatenate\"";
    if (has_prefix("constants")) return ", \"power\", \"take\"";
    if (has_prefix("optional")) return ", \"sigmoid\"";
    return "";
}

static int32_t describe(void *self, byoc_call *call) {
    char text[768];
    int length = snprintf(text, sizeof text,
                          "{\"version\": 1, \"operators\": [\"nn.conv2d\", \"nn.relu\"%s], \"dynamic_dims\": true, "
                          "\"patterns\": [%s], \"layouts\": {\"nn.conv2d\": [\"NHWC\", \"HWIO\"]}, "
                          "\"options\": {\"loud\": {\"about\": \"nothing\", \"values\": [\"false\", \"true\"]}}}",
                          operators(), has_prefix("constants") ? HALF : "");
    (void)self;
    call->host->answer(call, text, (size_t)length);
    return BYOC_OK;
}

/* Returns 1 if input `at` of a node is a constant scalar. */
static int is_constant_scalar(byoc_json graph, byoc_json node, size_t at) {
    byoc_json from = byoc_json_first(byoc_json_at(byoc_json_get(node, "inputs"), at));
    byoc_json producer = byoc_json_at(byoc_json_get(graph, "nodes"), (size_t)byoc_json_int(from, 0));
    byoc_json type = byoc_json_first(byoc_json_get(producer, "outputs"));
    return byoc_json_there(byoc_json_get(producer, "constant")) && byoc_json_count(byoc_json_get(type, "dims")) == 0;
}

/* Returns the reason against a candidate, or NULL. */
static const char *reason(const byoc_candidate *candidate) {
    byoc_json graph = byoc_json_of(candidate->graph), node;
    int computes = 0;
    if (!byoc_json_is(byoc_json_get(byoc_json_get(byoc_json_first(byoc_json_get(graph, "inputs")), "type"), "dtype"), "float32")) {
        return BYOC_UNSUPPORTED_DTYPE;
    }
    for (node = byoc_json_first(byoc_json_get(graph, "nodes")); byoc_json_there(node); node = byoc_json_next(node)) {
        byoc_json op = byoc_json_get(node, "op");
        if (byoc_json_is(op, "tanh")) return BYOC_UNAVAILABLE;
        if (byoc_json_is(op, "nn.conv2d") && !byoc_json_is(byoc_json_get(byoc_json_get(node, "attrs"), "data_layout"), "NHWC")) {
            return BYOC_UNSUPPORTED_LAYOUT;
        }
        if ((byoc_json_is(op, "power") || byoc_json_is(op, "take")) && !is_constant_scalar(graph, node, 1)) {
            return BYOC_NOT_CONSTANT;
        }
        if (byoc_json_is(op, "sigmoid") && strstr(candidate->attrs, "true") == NULL) return BYOC_UNSUPPORTED_OP;
        if (byoc_json_is(op, "nn.conv2d") || byoc_json_is(op, "nn.relu")) computes = 1;
    }
    if (candidate->kind == BYOC_REGION && has_prefix("beside") && !computes) return BYOC_NOT_PROFITABLE;
    return NULL;
}

static int32_t judge(void *self, byoc_call *call, const byoc_candidate *const *candidates, size_t count) {
    size_t i;
    (void)self;
    for (i = 0; i < count; i++) {
        const char *code = reason(candidates[i]);
        if (code == NULL) {
            call->host->support(call, i);
        } else {
            call->host->refuse(call, i, code, "claims takes convolutions in NHWC and nn.relu, on float32", NULL);
        }
    }
    return BYOC_OK;
}

static int has_open_dims(const char *graph) {
    const char *at = graph;
    while ((at = strstr(at, "\"dims\":[")) != NULL) {
        for (at += 8; *at != ']'; at++) {
            if (*at == '"' || *at == 'n') return 1;
        }
    }
    return 0;
}

static int32_t compile(void *self, byoc_call *call, const byoc_region *region) {
    byoc_compiled result = {0};
    const size_t size = strlen(region->graph);
    char *blob = (char *)malloc(size + 2);
    int zero = (has("layout_zero") && strstr(region->graph, "NHWC") != NULL) ||
               (has("open_zero") && has_open_dims(region->graph)) ||
               (has("beside_zero") && strstr(region->graph, "reshape") != NULL) ||
               (has("constants_zero") && strstr(region->graph, "claims.half") != NULL) ||
               (has("optional_zero") && strstr(region->graph, "sigmoid") != NULL) ||
               (has("option_zero") && strstr(region->options, "\"loud\":\"true\"") != NULL);
    (void)self;
    if (blob == NULL) {
        call->host->fail(call, "out of memory", NULL);
        return BYOC_ERROR;
    }
    /* The first byte says whether the mistake is made, the rest is the graph. */
    blob[0] = zero ? 'z' : 'g';
    memcpy(blob + 1, region->graph, size + 1);
    result.struct_size = sizeof result;
    result.blob = blob;
    result.blob_size = size + 1;
    result.loader = NAME;
    call->host->compiled(call, &result);
    free(blob);
    return BYOC_OK;
}

typedef struct {
    const byoc_host *host;
    byoc_reference *reference;
    int zero;
} region_t;

static int32_t prepare(void *self, byoc_call *call, const byoc_dims *inputs, size_t count) {
    return call->host->reference_prepare(((region_t *)self)->reference, call, inputs, count);
}

static int32_t run(void *self, byoc_call *call, const byoc_run *run) {
    region_t *region = (region_t *)self;
    const int32_t status = call->host->reference_run(region->reference, call, run);
    size_t i;
    for (i = 0; region->zero && i < run->output_count; i++) {
        size_t bytes = run->outputs[i].dtype.bits / 8;
        int32_t axis;
        for (axis = 0; axis < run->outputs[i].ndim; axis++) bytes *= (size_t)run->outputs[i].shape[axis];
        memset(run->outputs[i].data, 0, bytes);
    }
    return status;
}

static void release(void *self) {
    region_t *region = (region_t *)self;
    region->host->reference_release(region->reference);
    free(region);
}

static const byoc_executable EXECUTABLE = {sizeof EXECUTABLE, prepare, run, NULL, release};

/* Reserves memory as a driver does, and mistakes what follows if there is none. */
static void reserve(void) {
    volatile char *memory = (volatile char *)malloc((size_t)1 << 28);
    if (memory == NULL && has("memory_hang")) {
        for (;;) {
        }
    }
    if (memory == NULL) *memory = 1;
    free((void *)memory);
}

static int32_t load(void *self, byoc_call *call, const byoc_load *request) {
    region_t *region;
    char *graph;
    (void)self;
    if (request->blob_size == 0) {
        call->host->fail(call, "expected a blob of claims, found none", NULL);
        return BYOC_ERROR;
    }
    if (has("memory_hang") || has("memory_crash")) reserve();
    region = (region_t *)calloc(1, sizeof *region);
    graph = (char *)malloc(request->blob_size);
    if (region == NULL || graph == NULL) {
        free(region);
        free(graph);
        call->host->fail(call, "out of memory", NULL);
        return BYOC_ERROR;
    }
    memcpy(graph, (const char *)request->blob + 1, request->blob_size - 1);
    graph[request->blob_size - 1] = 0;
    region->host = call->host;
    region->zero = *(const char *)request->blob == 'z';
    region->reference = call->host->reference(call, graph, request->constants, request->constant_count);
    free(graph);
    if (region->reference == NULL) {
        release(region);
        return BYOC_ERROR;
    }
    call->host->loaded(call, &EXECUTABLE, region);
    return BYOC_OK;
}

static const byoc_codegen CODEGEN = {sizeof CODEGEN, describe, judge, compile, NULL, NULL};
static const byoc_loader LOADER = {sizeof LOADER, load, NULL, NULL};

static int32_t init(byoc_call *call, const char *path, const char *options) {
    const char *name = strstr(path, "claims_");
    size_t length;
    (void)options;
    if (name != NULL) {
        name += strlen("claims_");
        length = strcspn(name, ".");
        memcpy(mistake, name, length < sizeof mistake ? length : sizeof mistake - 1);
    }
    call->host->register_codegen(call, NAME, &CODEGEN, NULL);
    call->host->register_loader(call, NAME, &LOADER, NULL);
    return BYOC_OK;
}

const byoc_plugin *byoc_plugin_entry(uint32_t host_abi) {
    static const byoc_plugin plugin = {BYOC_ABI, sizeof plugin, NAME, "0.1.0", init};
    return host_abi >= BYOC_ABI ? &plugin : NULL;
}

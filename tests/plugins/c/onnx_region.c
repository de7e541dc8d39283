/* Plugin for tests of the service byoc.onnx.1: judges candidates by it, and its blobs are the ONNX models of its regions. Runs
 * are those of the host's reference kernels. */
#include "byoc_plugin.h"

#include <stdlib.h>
#include <string.h>

#define NAME "onnx_region"
enum { MAX_CONSTANTS = 64 };

/* Parts of an answer of the service, with a NUL after each. */
typedef struct answer {
    char *bytes[4];
    size_t sizes[4];
} answer;

static void receive(void *context, int32_t part, const void *bytes, size_t size) {
    answer *a = context;
    a->bytes[part] = realloc(a->bytes[part], a->sizes[part] + size + 1);
    memcpy(a->bytes[part] + a->sizes[part], bytes, size);
    a->sizes[part] += size;
    a->bytes[part][a->sizes[part]] = 0;
}

static void release(answer *a) {
    for (size_t i = 0; i < 4; i++) free(a->bytes[i]);
}

/* Writes a graph as ONNX. Returns BYOC_OK, or BYOC_ERROR with the reason in the part BYOC_ONNX_ERROR. */
static int32_t write_onnx(byoc_call *call, const char *graph, const byoc_constant *const *constants, size_t count, answer *a) {
    const byoc_onnx *service = call->host->get_service(call->host, BYOC_ONNX_SERVICE);
    byoc_tensor tensors[MAX_CONSTANTS];
    memset(a, 0, sizeof *a);
    if (!service || count > MAX_CONSTANTS) return BYOC_ERROR;
    for (size_t i = 0; i < count; i++) call->host->constant_tensor(constants[i], &tensors[i]);
    return service->write(graph, tensors, count, "{\"opset\": 15}", a, receive);
}

static int32_t describe(void *self, byoc_call *call) {
    static const char text[] = "{\"version\": 1, \"operators\": [\"nn.dense\", \"add\", \"nn.relu\", \"nn.adaptive_avg_pool2d\"]}";
    (void)self;
    call->host->answer(call, text, sizeof text - 1);
    return BYOC_OK;
}

static int32_t judge(void *self, byoc_call *call, const byoc_candidate *const *candidates, size_t count) {
    (void)self;
    for (size_t i = 0; i < count; i++) {
        const byoc_candidate *c = candidates[i];
        answer a;
        if (write_onnx(call, c->graph, c->constants, c->constant_count, &a) == BYOC_OK) {
            call->host->support(call, i);
        } else {
            const char *reason = a.bytes[BYOC_ONNX_ERROR] ? a.bytes[BYOC_ONNX_ERROR] : "no service";
            call->host->refuse(call, i, BYOC_UNSUPPORTED_OP, reason, NULL);
        }
        release(&a);
    }
    return BYOC_OK;
}

static int32_t compile(void *self, byoc_call *call, const byoc_region *region) {
    byoc_compiled result = {0};
    answer a;
    int32_t status = write_onnx(call, region->graph, region->constants, region->constant_count, &a);
    (void)self;
    if (status == BYOC_OK) {
        result.struct_size = sizeof result;
        result.blob = a.bytes[BYOC_ONNX_MODEL];
        result.blob_size = a.sizes[BYOC_ONNX_MODEL];
        result.loader = NAME;
        result.source_language = "json";
        result.source = a.bytes[BYOC_ONNX_INFO];
        call->host->compiled(call, &result);
    } else {
        call->host->fail(call, a.bytes[BYOC_ONNX_ERROR] ? a.bytes[BYOC_ONNX_ERROR] : "no service", NULL);
    }
    release(&a);
    return status;
}

static const byoc_codegen CODEGEN = {sizeof CODEGEN, describe, judge, compile, NULL, NULL};

static int32_t init(byoc_call *call, const char *path, const char *options) {
    (void)path;
    (void)options;
    call->host->register_codegen(call, NAME, &CODEGEN, NULL);
    return BYOC_OK;
}

const byoc_plugin *byoc_plugin_entry(uint32_t host_abi);
const byoc_plugin *byoc_plugin_entry(uint32_t host_abi) {
    static const byoc_plugin plugin = {BYOC_ABI, sizeof plugin, NAME, "0.1.0", init};
    return host_abi >= BYOC_ABI ? &plugin : NULL;
}

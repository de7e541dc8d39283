/* onnx_files: a complete byoc backend around a compiler that takes ONNX files and a run time that is a command:
 *
 *     onnx_files-cc region.onnx -o region.bin     with --check in place of -o region.bin: says whether it would compile
 *     onnx_files-run region.bin 0.in 1.in -o 0.out
 */
#define _GNU_SOURCE
#include "byoc_command.h"

#include <stdatomic.h>

#define NAME "onnx_files"
#define COMPILER "ONNX_FILES_CC"
#define RUN_TIME "ONNX_FILES_RUN"
#define PRODUCT "(*, const, const, const, const, const)"

/* What the compiler is asked about. The products of bytes are float operators between DequantizeLinear and QuantizeLinear. */
static const char DESCRIPTION[] =
    "{\"version\": 1, \"about\": \"regions as ONNX files for a compiler that is a command\","
    "\"patterns\": [\"qnn_product: let sum = qnn.conv2d" PRODUCT " | qnn.dense" PRODUCT "; let biased = nn.bias_add(sum, const)"
    " | add(sum, const) | sum; qnn.requantize(biased, const, const, const, const) ? nn.relu ? clip | qnn.dequantize(biased, const, const)\"],"
    "\"operators\": [\"add\", \"clip\", \"concatenate\", \"multiply\", \"nn.avg_pool2d\", \"nn.batch_flatten\", \"nn.bias_add\","
    "\"nn.conv2d\", \"nn.dense\", \"nn.max_pool2d\", \"nn.relu\", \"qnn.add\", \"qnn.avg_pool2d\", \"qnn.dequantize\", \"qnn.quantize\", \"reshape\", \"sigmoid\"],"
    "\"quantization\": {\"activation\": \"int8\", \"weight\": \"int8\", \"accumulator\": \"int32\", \"symmetric\": true, \"per_channel\": true},"
    "\"options\": {\"time_limit\": {\"about\": \"seconds that a command may take, 60 by default\", \"load\": true}}}";

static int32_t fail(byoc_call *call, const char *code, const char *message) {
    call->host->fail_with(call, code, message, NULL);
    return BYOC_ERROR;
}

static int32_t describe(void *self, byoc_call *call) {
    (void)self;
    call->host->answer(call, DESCRIPTION, sizeof DESCRIPTION - 1);
    return BYOC_OK;
}

/* Calls the compiler on a graph. Returns NULL, or a code with a message; `blob` gets the binary after `before` bytes. */
static const char *call_compiler(const byoc_host *host, const byoc_candidate *c, size_t before, char **blob, size_t *size, char *message) {
    static const char *const FILES[] = {"region.onnx", "region.bin"};
    const char *program = getenv(COMPILER) ? getenv(COMPILER) : NAME "-cc", *code = BYOC_UNSUPPORTED_OP;
    const char *const arguments[] = {program, FILES[0], blob ? "-o" : "--check", blob ? FILES[1] : NULL, NULL};
    char lines[BYOC_COMMAND_BYTES];
    byoc_folder folder;
    if (!byoc_folder_new(&folder)) return snprintf(message, BYOC_COMMAND_BYTES, "cannot create a directory"), BYOC_UNAVAILABLE;
    if (byoc_write_onnx(host, c->graph, c->constants, c->constant_count, "{\"opset\": 17}", byoc_file(&folder, FILES[0]).text,
                        message, BYOC_COMMAND_BYTES) == BYOC_OK) {
        int result = byoc_command(host, arguments, folder.path, byoc_time_limit(c->attrs, 60), lines);
        code = byoc_command_problem(result, COMPILER, lines, message, BYOC_COMMAND_BYTES);
        if (code == NULL && blob && (*blob = byoc_read_file(byoc_file(&folder, FILES[1]).text, before, size)) == NULL) {
            snprintf(message, BYOC_COMMAND_BYTES, "the compiler succeeded, but region.bin is missing: %.1024s", lines);
            code = BYOC_UNSUPPORTED_OP;
        }
    }
    byoc_folder_remove(&folder, FILES, 2);
    return code;
}

static int32_t judge(void *self, byoc_call *call, const byoc_candidate *const *candidates, size_t count) {
    static atomic_int lacks; /* a compiler that is missing or hangs is not asked again */
    char message[BYOC_COMMAND_BYTES] = "the compiler did not answer before";
    (void)self;
    for (size_t i = 0; i < count; i++) {
        const char *code = lacks ? BYOC_UNAVAILABLE : call_compiler(call->host, candidates[i], 0, NULL, NULL, message);
        if (code && !strcmp(code, BYOC_CANCELLED)) return fail(call, code, message);
        if (code && !strcmp(code, BYOC_UNAVAILABLE)) lacks = 1;
        if (code) call->host->refuse(call, i, code, message, NULL);
        else call->host->support(call, i);
    }
    return BYOC_OK;
}

static int32_t compile(void *self, byoc_call *call, const byoc_region *region) {
    const byoc_candidate c = {.graph = region->graph, .constants = region->constants, .constant_count = region->constant_count, .attrs = region->options};
    byoc_compiled result = {.struct_size = sizeof result, .loader = NAME};
    char message[BYOC_COMMAND_BYTES], *types = byoc_types(region->graph, NULL), *blob;
    const size_t before = types ? strlen(types) : 0;
    const char *code = call_compiler(call->host, &c, before, &blob, &result.blob_size, message);
    (void)self;
    if (code == NULL) {
        memcpy(blob, types, before); /* a line with the types, which `load` compares, and the binary */
        result.blob = blob;
        result.blob_size += before;
        call->host->compiled(call, &result);
        free(blob);
    }
    free(types);
    return code ? fail(call, code, message) : BYOC_OK;
}

typedef struct {
    char *options; /* of `load` */
    byoc_folder folder; /* with region.bin */
} binary_t;

static void release(void *self) {
    static const char *const FILES[] = {"region.bin"};
    byoc_folder_remove(&((binary_t *)self)->folder, FILES, 1);
    free(((binary_t *)self)->options);
    free(self);
}

static int32_t prepare(void *self, byoc_call *call, const byoc_dims *inputs, size_t count) {
    (void)inputs, (void)count;
    return byoc_prepare_static(call, ((const binary_t *)self)->options);
}

static int32_t run(void *self, byoc_call *call, const byoc_run *run) {
    const binary_t *binary = self;
    const char *program = getenv(RUN_TIME) ? getenv(RUN_TIME) : NAME "-run";
    return byoc_run_files(call, run, program, RUN_TIME, byoc_file(&binary->folder, "region.bin").text, byoc_time_limit(binary->options, 60));
}

static int32_t load(void *self, byoc_call *call, const byoc_load *request) {
    static const byoc_executable EXECUTABLE = {sizeof EXECUTABLE, prepare, run, NULL, release};
    char *types = byoc_types(NULL, request->options);
    const size_t before = types ? strlen(types) : 0;
    const int is_same = before > 0 && request->blob_size > before && memcmp(request->blob, types, before) == 0;
    binary_t *binary = calloc(1, sizeof *binary);
    (void)self;
    free(types);
    if (binary == NULL || !byoc_folder_new(&binary->folder)) return free(binary), fail(call, BYOC_RESOURCE_LIMIT, "cannot create a directory");
    call->host->loaded(call, &EXECUTABLE, binary);
    binary->options = strdup(request->options);
    if (!is_same) return fail(call, NULL, "expected a blob for the types of this region, found another one");
    return byoc_write_file(byoc_file(&binary->folder, "region.bin").text, (const char *)request->blob + before, request->blob_size - before)
        ? BYOC_OK : fail(call, BYOC_RESOURCE_LIMIT, "cannot write region.bin");
}

static int32_t init(byoc_call *call, const char *path, const char *options) {
    static const byoc_codegen CODEGEN = {sizeof CODEGEN, describe, judge, compile, NULL, NULL};
    static const byoc_loader LOADER = {sizeof LOADER, load, NULL, NULL};
    (void)path, (void)options;
    call->host->register_codegen(call, NAME, &CODEGEN, NULL);
    call->host->register_loader(call, NAME, &LOADER, NULL);
    return BYOC_OK;
}

const byoc_plugin *byoc_plugin_entry(uint32_t host_abi) {
    static const byoc_plugin plugin = {BYOC_ABI, sizeof plugin, NAME, "0.1.0", init};
    return host_abi >= BYOC_ABI ? &plugin : NULL;
}

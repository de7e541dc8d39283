/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* frozen_c: a backend against the byoc_plugin.h of release 0.1.0, which lies beside it. It uses every function of the
 * host, takes nn.relu and add on float32, and computes them on the host's reference kernels. */
#include "byoc_json.h"
#include "byoc_plugin.h"

#include <stdio.h>

#define NAME "frozen_c"

static int32_t describe(void *self, byoc_call *call) {
    static const char text[] = "{\"version\": 1, \"patterns\": [\"add_relu: nn.relu(add(*, *))\"], \"operators\": [\"nn.relu\", \"add\"], "
                               "\"dynamic_dims\": true}";
    (void)self;
    call->host->answer(call, text, sizeof text - 1);
    return BYOC_OK;
}

static int32_t judge(void *self, byoc_call *call, const byoc_candidate *const *candidates, size_t count) {
    size_t i;
    (void)self;
    for (i = 0; i < count; i++) {
        byoc_json input = byoc_json_first(byoc_json_get(byoc_json_of(candidates[i]->graph), "inputs"));
        int good = 1;
        for (; byoc_json_there(input); input = byoc_json_next(input)) {
            good = good && byoc_json_is(byoc_json_get(byoc_json_get(input, "type"), "dtype"), "float32");
        }
        if (good) {
            call->host->support(call, i);
        } else {
            call->host->refuse(call, i, BYOC_UNSUPPORTED_DTYPE, "expected float32", "convert it");
        }
    }
    return BYOC_OK;
}

static int32_t compile(void *self, byoc_call *call, const byoc_region *region) {
    byoc_compiled result = {0};
    (void)self;
    if (call->host->cancelled(call->host)) {
        call->host->fail_with(call, BYOC_CANCELLED, "cancelled by the host", NULL);
        return BYOC_ERROR;
    }
    result.struct_size = sizeof result;
    result.blob = region->graph;
    result.blob_size = strlen(region->graph);
    result.loader = NAME;
    result.source_language = "json";
    result.source = region->graph;
    result.notes = "frozen";
    result.metadata = "{\"release\": \"0.1.0\"}";
    call->host->compiled(call, &result);
    return BYOC_OK;
}

typedef struct {
    const byoc_host *host;
    const byoc_constant *constant; /* the first one, or NULL */
    byoc_reference *reference;
} region_t;

static int32_t prepare(void *self, byoc_call *call, const byoc_dims *inputs, size_t count) {
    return call->host->reference_prepare(((region_t *)self)->reference, call, inputs, count);
}

static void count_call(void *context, size_t worker, size_t index) {
    (void)index;
    ((int32_t *)context)[worker]++;
}

static void nothing(void *context, size_t index) {
    (void)context;
    (void)index;
}

static int32_t run(void *self, byoc_call *call, const byoc_run *run) {
    region_t *region = (region_t *)self;
    const byoc_host *host = call->host;
    int32_t *calls = (int32_t *)calloc(host->num_threads(host), sizeof *calls);
    size_t worker, total = 0;
    if (calls == NULL || host->parallel_for_workers(call, 8, count_call, calls) != BYOC_OK ||
        host->parallel_for(call, 3, nothing, NULL) != BYOC_OK) {
        free(calls);
        return BYOC_ERROR;
    }
    for (worker = 0; worker < host->num_threads(host); worker++) total += (size_t)calls[worker];
    free(calls);
    host->counter(host, "frozen.tasks", total);
    host->event(host, "frozen.run", "{}");
    if (host->log_level(host) >= BYOC_LOG_DEBUG) host->log(host, BYOC_LOG_DEBUG, NAME, "runs");
    if (region->constant != NULL) {
        char digest[BYOC_DIGEST_SIZE], name[16];
        byoc_tensor tensor;
        host->constant_tensor(region->constant, &tensor);
        host->constant_name(region->constant, name, sizeof name);
        if (host->constant_digest(region->constant, digest, sizeof digest) >= sizeof digest || tensor.data == NULL) {
            host->fail(call, "a constant is not as documented", NULL);
            return BYOC_ERROR;
        }
    }
    return host->reference_run(region->reference, call, run);
}

static int32_t query(void *self, byoc_call *call, const char *key, const void *data, size_t size) {
    (void)self;
    if (strcmp(key, "plan.release") != 0) return BYOC_UNKNOWN_KEY;
    return byoc_json_there(byoc_json_parse((const char *)data, size)) ? (call->host->answer(call, "", 0), BYOC_OK) : BYOC_ERROR;
}

static void release(void *self) {
    region_t *region = (region_t *)self;
    region->host->constant_release(region->constant);
    region->host->reference_release(region->reference);
    free(region);
}

static const byoc_executable EXECUTABLE = {sizeof EXECUTABLE, prepare, run, query, release};

static int32_t load(void *self, byoc_call *call, const byoc_load *request) {
    region_t *region = (region_t *)calloc(1, sizeof *region);
    char *graph = (char *)malloc(request->blob_size + 1);
    (void)self;
    if (region == NULL || graph == NULL || call->host->get_service(call->host, "byoc.nothing.1") != NULL) {
        free(region);
        free(graph);
        call->host->fail(call, "out of memory", NULL);
        return BYOC_ERROR;
    }
    memcpy(graph, request->blob, request->blob_size);
    graph[request->blob_size] = 0;
    region->host = call->host;
    if (request->constant_count > 0) region->constant = call->host->constant_retain(request->constants[0]);
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
    (void)path;
    (void)options;
    if (!BYOC_HAS(call->host, parallel_for_workers)) {
        call->host->fail(call, "expected a host of 0.1.0 or later", NULL);
        return BYOC_ERROR;
    }
    call->host->rename(call, NAME);
    call->host->register_codegen(call, NAME, &CODEGEN, NULL);
    call->host->register_loader(call, NAME, &LOADER, NULL);
    call->host->register_data(call, NAME ".facts", "{}");
    return BYOC_OK;
}

const byoc_plugin *byoc_plugin_entry(uint32_t host_abi) {
    static const byoc_plugin plugin = {BYOC_ABI, sizeof plugin, "frozen", "0.1.0", init};
    return host_abi >= BYOC_ABI ? &plugin : NULL;
}

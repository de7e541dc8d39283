/* Plugin for tests that uses every function of byoc_plugin.h. The data of an entry selects its behavior: the name of a
 * candidate, the symbol of a region. */
#include "byoc_json.h"
#include "byoc_plugin.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int released;

static int32_t describe(void *self, byoc_call *call) {
    const char *text = (const char *)self;
    call->host->answer(call, text, strlen(text));
    return BYOC_OK;
}

static int32_t judge(void *self, byoc_call *call, const byoc_candidate *const *candidates, size_t count) {
    (void)self;
    for (size_t i = 0; i < count; i++) {
        const char *name = candidates[i]->name;
        if (strcmp(name, "silent") == 0) continue;
        if (strcmp(name, "outside") == 0) call->host->support(call, count);
        if (strcmp(name, "wordless") == 0) return 7;
        if (candidates[i]->kind == BYOC_REGION && candidates[i]->check[0] != 0) {
            call->host->refuse(call, i, BYOC_RESOURCE_LIMIT, candidates[i]->check, "smaller");
        } else if (strcmp(name, "costly") == 0) {
            call->host->refuse(call, i, BYOC_SUPPORTED, "{\"nanoseconds\": 1500, \"cycles\": 9}", NULL);
        } else {
            call->host->support(call, i);
        }
    }
    return BYOC_OK;
}

static int32_t compile(void *self, byoc_call *call, const byoc_region *region) {
    const char *symbols[2];
    byoc_compiled result = {0};
    (void)self;
    if (strcmp(region->symbol, "nothing") == 0) return BYOC_OK;
    if (strcmp(region->symbol, "fails") == 0) {
        call->host->fail(call, "the region is not supported", "change the model");
        return BYOC_ERROR;
    }
    if (strcmp(region->symbol, "coded") == 0) {
        call->host->fail_with(call, BYOC_RESOURCE_LIMIT, "expected at most 1 queue, found 2", "wait");
        return BYOC_ERROR;
    }
    if (BYOC_HAS(call->host, cancelled) && call->host->cancelled(call->host)) {
        call->host->fail(call, "compilation abandoned", NULL);
        return BYOC_ERROR;
    }
    symbols[0] = region->symbol;
    symbols[1] = "helper";
    result.struct_size = sizeof result;
    result.blob = region->graph;
    result.blob_size = strlen(region->graph);
    result.loader = "everything";
    result.symbols = symbols;
    result.symbol_count = 2;
    result.source_language = "txt";
    result.source = region->options;
    result.notes = "one\ntwo";
    result.metadata = strcmp(region->symbol, "metadata") == 0 ? "[]" : "{\"cycles\": 12, \"cpu_features\": [\"avx2\"]}";
    call->host->compiled(call, &result);
    return BYOC_OK;
}

static size_t show(char *out, byoc_json name_given, const int64_t *dims, size_t count) {
    char name[32];
    size_t length, i;
    byoc_json_text(name_given, name, sizeof name);
    length = (size_t)sprintf(out, "%s:[", name);
    for (i = 0; i < count && i < 8; i++) length += (size_t)sprintf(out + length, i ? ", %lld" : "%lld", (long long)dims[i]);
    return length + (size_t)sprintf(out + length, "];");
}

/* Formats a list of objects as "name:[dims];" each, looking up the fields of an object together. */
static size_t looked_up(byoc_json list, char *out) {
    static const char *const keys[] = {"name", "dims"};
    size_t length = 0;
    byoc_json object = byoc_json_first(list);
    while (byoc_json_there(object)) {
        byoc_json values[2];
        int64_t dims[8];
        size_t count;
        object = byoc_json_next_fields(object, keys, values, 2);
        count = byoc_json_ints(values[1], dims, 8, -7);
        length += show(out + length, values[0], dims, count);
    }
    return length;
}

/* Does the same, reading each value once. */
static size_t passed_through(byoc_json at, char *out) {
    size_t length = 0;
    while (byoc_json_each(&at)) {
        byoc_json name = byoc_json_none();
        int64_t dims[8];
        size_t count = 0;
        while (byoc_json_each(&at)) {
            if (byoc_json_field(&at, "name")) {
                name = byoc_json_take(&at);
            } else if (byoc_json_field(&at, "dims")) {
                count = byoc_json_take_ints(&at, dims, 8, -7);
            } else {
                byoc_json_pass(&at);
            }
        }
        length += show(out + length, name, dims, count);
    }
    return length;
}

/* Answers with the output of a reader for a copy of the text, so that memory checkers detect reads beyond its end. */
static void names_and_dims(byoc_call *call, const void *data, size_t size, int checked, size_t (*read)(byoc_json, char *)) {
    char *text = (char *)malloc(size + 1), *out = (char *)malloc(64 * size + 64);
    byoc_json list = byoc_json_parse((char *)memcpy(text, data, size), size);
    if (!checked) {
        list.at = text;
        list.end = text + size;
    }
    call->host->answer(call, out, read(list, out));
    free(out);
    free(text);
}

/* Answers the link step with 4 bytes that all regions share. */
static void link_regions(byoc_call *call, const char *data, size_t size) {
    static const char head[] = "{\"shared\": [0, 4], \"notes\": [\"linked in C\"]}";
    char answer[8 + sizeof head - 1 + 4] = {0};
    uint64_t head_size = 0;
    size_t i;
    /* Both sizes are little-endian. */
    for (i = 0; i < 8 && i < size; i++) head_size |= (uint64_t)(unsigned char)data[i] << (8 * i);
    if (size < 8 || head_size > size - 8) {
        call->host->fail(call, "expected a request of the link step", NULL);
        return;
    }
    answer[0] = (char)(sizeof head - 1);
    memcpy(answer + 8, head, sizeof head - 1);
    /* The first bytes of the data of the request. */
    for (i = 0; i < 4 && 8 + head_size + i < size; i++) answer[8 + sizeof head - 1 + i] = data[8 + head_size + i];
    call->host->answer(call, answer, sizeof answer);
}

static int32_t query(void *self, byoc_call *call, const char *key, const void *data, size_t size) {
    (void)self;
    if (strcmp(key, BYOC_LINK_KEY) == 0) {
        link_regions(call, (const char *)data, size);
        return BYOC_OK;
    }
    if (strcmp(key, "released") == 0) {
        call->host->answer(call, &released, sizeof released);
        return BYOC_OK;
    }
    if (strcmp(key, "names and dims") == 0) {
        names_and_dims(call, data, size, 1, looked_up);
        return BYOC_OK;
    }
    if (strcmp(key, "names and dims in one pass") == 0) {
        names_and_dims(call, data, size, 1, passed_through);
        return BYOC_OK;
    }
    if (strcmp(key, "names and dims of anything") == 0) {
        names_and_dims(call, data, size, 0, passed_through);
        return BYOC_OK;
    }
    if (strcmp(key, "echo") != 0) return BYOC_UNKNOWN_KEY;
    call->host->answer(call, data, size);
    return BYOC_OK;
}

static void count_release(void *self) {
    (void)self;
    released++;
}

static const byoc_codegen CODEGEN = {sizeof CODEGEN, describe, judge, compile, query, count_release};
/* A table that ends before `query`: the fields after `struct_size` bytes must be ignored. */
static const byoc_codegen SHORT = {offsetof(byoc_codegen, query), describe, NULL, compile, query, count_release};

typedef struct {
    const byoc_host *host;
    const byoc_constant *constant;
    byoc_reference *reference;
    char symbol[32];
} region_t;

static int32_t prepare(void *self, byoc_call *call, const byoc_dims *inputs, size_t count) {
    region_t *region = (region_t *)self;
    int64_t dims[2] = {-3, 2};
    if (strcmp(region->symbol, "negative") == 0) {
        call->host->output(call, dims, 2, 1);
        return BYOC_OK;
    }
    if (region->reference != NULL) return call->host->reference_prepare(region->reference, call, inputs, count);
    call->host->output(call, inputs[0].data, inputs[0].count, 0);
    call->host->prepared(call, 256, 42);
    return BYOC_OK;
}

typedef struct {
    const float *from;
    const float *weights;
    float *to;
    /* One slot per worker, in the workspace. */
    int32_t *calls;
} task_t;

static void task(void *context, size_t index) {
    task_t *work = (task_t *)context;
    work->to[index] = work->from[index] * work->weights[index];
}

/* Counts in the worker's own slot, without synchronization: memory checkers detect two calls at once. */
static void worker_task(void *context, size_t worker, size_t index) {
    task(context, index);
    ((task_t *)context)->calls[worker]++;
}

static int32_t run(void *self, byoc_call *call, const byoc_run *run) {
    region_t *region = (region_t *)self;
    byoc_tensor weights;
    task_t work;
    char fields[128], digest[8], name[4];
    size_t count = 0, worker, name_length;
    if (region->reference != NULL) return call->host->reference_run(region->reference, call, run);
    if (run->plan != 42 || run->workspace_size != 256 || (uintptr_t)run->workspace % 64 != 0) {
        call->host->fail(call, "not as prepared", NULL);
        return BYOC_ERROR;
    }
    call->host->constant_tensor(region->constant, &weights);
    work.from = (const float *)run->inputs[0].data;
    work.weights = (const float *)weights.data;
    work.to = (float *)run->outputs[0].data;
    if (call->host->parallel_for(call, (size_t)run->inputs[0].shape[0], task, &work) != BYOC_OK) return BYOC_ERROR;
    work.calls = (int32_t *)run->workspace;
    memset(work.calls, 0, run->workspace_size);
    if (call->host->parallel_for_workers(call, (size_t)run->inputs[0].shape[0], worker_task, &work) != BYOC_OK) return BYOC_ERROR;
    for (worker = 0; worker < call->host->num_threads(call->host); worker++) count += (size_t)work.calls[worker];
    name_length = call->host->constant_name(region->constant, name, sizeof name);
    snprintf(fields, sizeof fields, "{\"digest\": %zu, \"name\": [\"%s\", %zu], \"calls\": %zu, \"threads\": %zu}",
             call->host->constant_digest(region->constant, digest, sizeof digest), name, name_length, count,
             call->host->num_threads(call->host));
    call->host->event(call->host, "ran", fields);
    call->host->counter(call->host, "runs", 2);
    if (call->host->log_level(call->host) >= BYOC_LOG_INFO) call->host->log(call->host, BYOC_LOG_INFO, "everything", digest);
    /* Shrinks the output below the bound that `prepare` gave. */
    run->outputs[0].shape[0] -= 1;
    return BYOC_OK;
}

static void give_back(void *self) {
    region_t *region = (region_t *)self;
    region->host->constant_release(region->constant);
    region->host->reference_release(region->reference);
    free(region);
    released++;
}

static const byoc_executable EXECUTABLE = {sizeof EXECUTABLE, prepare, run, query, give_back};
static const byoc_executable NO_RUN = {offsetof(byoc_executable, run), prepare, NULL, NULL, NULL};

static int32_t load(void *self, byoc_call *call, const byoc_load *request) {
    region_t *region;
    (void)self;
    if (strcmp(request->symbol, "nothing") == 0) return BYOC_OK;
    if (call->host->get_service(call->host, "byoc.nothing.1") != NULL) return BYOC_ERROR;
    region = (region_t *)calloc(1, sizeof *region);
    region->host = call->host;
    snprintf(region->symbol, sizeof region->symbol, "%s", request->symbol);
    if (strcmp(request->symbol, "no_run") == 0) {
        call->host->loaded(call, &NO_RUN, NULL);
        free(region);
        return BYOC_OK;
    }
    if (request->constant_count > 0) {
        region->constant = call->host->constant_retain(request->constants[0]);
    }
    if (strcmp(request->symbol, "reference") == 0) {
        char *graph = (char *)malloc(request->blob_size + 1);
        memcpy(graph, request->blob, request->blob_size);
        graph[request->blob_size] = 0;
        region->reference = call->host->reference(call, graph, request->constants, request->constant_count);
        free(graph);
        if (region->reference == NULL) {
            give_back(region);
            return BYOC_ERROR;
        }
    }
    call->host->loaded(call, &EXECUTABLE, region);
    return BYOC_OK;
}

static const byoc_loader LOADER = {sizeof LOADER, load, query, NULL};

static int32_t init(byoc_call *call, const char *path, const char *options) {
    byoc_json version = byoc_json_get(byoc_json_parse(options, strlen(options)), "host_api_version");
    if (!byoc_json_there(version) || strstr(path, ".so") == NULL) {
        call->host->fail(call, "not as init is called", NULL);
        return BYOC_ERROR;
    }
    call->host->rename(call, "all");
    call->host->register_codegen(call, "all", &CODEGEN, (void *)"{\"operators\": [\"nn.relu\"]}");
    call->host->register_codegen(call, "short", &SHORT, (void *)"no JSON");
    call->host->register_loader(call, "everything", &LOADER, NULL);
    call->host->register_data(call, "everything.facts", "{}");
    return BYOC_OK;
}

const byoc_plugin *byoc_plugin_entry(uint32_t host_abi) {
    static const byoc_plugin plugin = {BYOC_ABI, sizeof plugin, "everything", "3.1", init};
    return host_abi >= BYOC_ABI ? &plugin : NULL;
}

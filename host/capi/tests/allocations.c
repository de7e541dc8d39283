/* Counts the allocations in 100 runs after the first run: allocations MODEL. */
#include <byoc.h>
#include <stdio.h>
#include <stdlib.h>

extern void *__libc_malloc(size_t size);
extern void *__libc_calloc(size_t count, size_t size);
extern void *__libc_realloc(void *memory, size_t size);
extern void *__libc_memalign(size_t alignment, size_t size);

static _Thread_local long count;

void *malloc(size_t size) {
    count++;
    return __libc_malloc(size);
}
void *calloc(size_t number, size_t size) {
    count++;
    return __libc_calloc(number, size);
}
void *realloc(void *memory, size_t size) {
    count++;
    return __libc_realloc(memory, size);
}
int posix_memalign(void **memory, size_t alignment, size_t size) {
    count++;
    *memory = __libc_memalign(alignment, size);
    return *memory == NULL ? 12 : 0;
}

int main(int argc, char **argv) {
    float image[64] = {0}, logits[10];
    int64_t image_shape[] = {1, 1, 8, 8}, logits_shape[] = {1, 10};
    byoc_dim batch = {"batch", 1};
    byoc_session_options one = {.struct_size = sizeof one, .threads = 1};
    byoc_compile_options options = {.struct_size = sizeof options, .dims = &batch, .dim_count = 1};
    byoc_tensor_view input, output;
    byoc_session *session = NULL;
    byoc_model *model = NULL;
    byoc_view(&input, "float32", image, image_shape, 4);
    byoc_view(&output, "float32", logits, logits_shape, 2);
    if (argc != 2 || byoc_session_create(&one, &session) != NULL ||
        byoc_model_compile(session, argv[1], &options, &model) != NULL)
        return 2;
    long before = 0;
    for (int run = 0; run < 103; run++) {
        if (run == 3) before = count;
        if (byoc_model_run(model, &input, 1, &output, 1, NULL) != NULL) return 3;
    }
    long added = count - before;
    printf("expected no allocations in 100 runs after %ld at the start, found %ld\n", before, added);
    byoc_model_free(model);
    byoc_session_free(session);
    return before < 100 || added != 0;
}

/* Tests managed tensors, plans and input shapes: dlpack DIGITS.onnx CONSTANT.relay. Prints the first failed check. */
#include <byoc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            printf("line %d: %s\n", __LINE__, #condition);                                                             \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

static int deleted;

static void delete_plain(byoc_dlpack *tensor) {
    deleted++;
    free(tensor->view.data);
    free(tensor);
}

static void delete_versioned(byoc_dlpack_versioned *tensor) {
    deleted++;
    free(tensor->view.data);
    free(tensor);
}

/* Frees an error, and returns true if its message contains the given text. */
static int fails(byoc_error *error, const char *text) {
    int found = error != NULL && strstr(byoc_error_message(error), text) != NULL;
    if (!found) printf("%s\n", byoc_error_text(error));
    byoc_error_free(error);
    return found;
}

/* Fills a view with 64 newly allocated elements: 0, 1, 2, ... */
static void fill(byoc_tensor_view *view, int64_t *shape, int64_t *strides) {
    float *data = malloc(64 * sizeof *data);
    for (int i = 0; i < 64; i++) data[i] = (float)i;
    CHECK(byoc_view(view, "float32", data, shape, 4) == 0);
    view->strides = strides;
}

static byoc_dlpack *plain(int64_t *shape, int64_t *strides) {
    byoc_dlpack *tensor = calloc(1, sizeof *tensor);
    fill(&tensor->view, shape, strides);
    tensor->deleter = delete_plain;
    return tensor;
}

int main(int argc, char **argv) {
    int64_t shape[] = {1, 1, 8, 8}, transposed[] = {64, 64, 1, 8}, dense[] = {7, 64, 8, 1};
    byoc_input_shape given = {"image", shape, 4};
    byoc_session_options one = {.struct_size = sizeof one, .threads = 1};
    byoc_compile_options options = {.struct_size = sizeof options, .input_shapes = &given, .input_shape_count = 1};
    byoc_session *session = NULL;
    byoc_model *model = NULL, *constant = NULL;
    CHECK(argc == 3 && byoc_session_create(&one, &session) == NULL);
    CHECK(byoc_model_compile(session, argv[1], &options, &model) == NULL);
    CHECK(byoc_model_compile(session, argv[2], NULL, &constant) == NULL);
    int64_t negative[] = {1, 1, -8, 8};
    given.shape = negative;
    byoc_model *none = NULL;
    CHECK(fails(byoc_model_compile(session, argv[1], &options, &none), "sizes >= 0 for image, found -8"));

    const char *plan = byoc_model_plan(model);
    CHECK(strstr(plan, "\"nn.conv2d\"") && strstr(plan, "\"registers\"") && strstr(plan, "\"arena_bytes\""));
    CHECK(byoc_model_plan(model) == plan && byoc_model_plan(NULL)[0] == '\0');

    /* A tensor of an external library as an input. */
    byoc_dlpack *tensor = plain(shape, dense);
    byoc_results *input = NULL, *results = NULL;
    CHECK(byoc_results_from_dlpack(tensor, &input) == NULL && deleted == 0);
    const byoc_tensor_view *view = byoc_results_get(input, 0);
    CHECK(view->data == tensor->view.data && ((float *)view->data)[63] == 63);
    CHECK(byoc_model_run_alloc(model, view, 1, NULL, &results) == NULL);
    byoc_results_free(input);
    CHECK(deleted == 1);

    /* Strided elements are copied, and the deleter is called immediately. */
    byoc_results *copied = NULL;
    CHECK(byoc_results_from_dlpack(plain(shape, transposed), &copied) == NULL && deleted == 2);
    view = byoc_results_get(copied, 0);
    CHECK(view->strides == NULL && ((float *)view->data)[1] == 8 && ((float *)view->data)[8] == 1);
    byoc_results_free(copied);

    /* A valid versioned tensor, and versioned tensors with invalid fields. */
    byoc_dlpack_versioned *versioned = calloc(1, sizeof *versioned);
    fill(&versioned->view, shape, NULL);
    versioned->major = 2;
    versioned->deleter = delete_versioned;
    CHECK(fails(byoc_results_from_dlpack_versioned(versioned, &input), "DLPack version 1, found 2.0"));
    versioned->major = 1;
    versioned->view.device.kind = 2;
    CHECK(fails(byoc_results_from_dlpack_versioned(versioned, &input), "expected host memory"));
    versioned->view.device.kind = 1;
    CHECK(fails(byoc_results_from_dlpack_versioned(versioned, NULL), "found NULL") && deleted == 2);
    CHECK(byoc_results_from_dlpack_versioned(versioned, &input) == NULL);
    byoc_results_free(input);
    CHECK(deleted == 3 && fails(byoc_results_from_dlpack(NULL, &input), "found NULL"));

    /* Exported results outlive the results object, the model and the session. */
    byoc_dlpack *first = NULL, *second = NULL;
    byoc_dlpack_versioned *third = NULL;
    CHECK(byoc_results_to_dlpack(results, 0, &first) == NULL && byoc_results_to_dlpack(results, 0, &second) == NULL);
    CHECK(byoc_results_to_dlpack_versioned(results, 0, &third) == NULL);
    CHECK(fails(byoc_results_to_dlpack(results, 1, &first), "a result index < 1, found 1"));
    CHECK(fails(byoc_results_to_dlpack(results, 0, NULL), "found NULL"));
    CHECK(fails(byoc_results_to_dlpack(NULL, 0, &first), "found NULL"));
    CHECK(first->view.data == byoc_results_get(results, 0)->data && third->flags == 0 && third->major == 1);
    float logit = ((float *)first->view.data)[9];
    byoc_results_free(results);

    /* A model constant is copied, or marked as read-only. */
    float x[6] = {-1, 2, -3, 4, -5, 6};
    int64_t x_shape[] = {2, 3};
    byoc_tensor_view x_view;
    CHECK(byoc_view(&x_view, "float32", x, x_shape, 2) == 0);
    CHECK(byoc_model_run_alloc(constant, &x_view, 1, NULL, &results) == NULL);
    byoc_dlpack *copy = NULL;
    byoc_dlpack_versioned *marked = NULL, *own = NULL;
    CHECK(byoc_results_to_dlpack(results, 1, &copy) == NULL);
    CHECK(byoc_results_to_dlpack_versioned(results, 1, &marked) == NULL && marked->flags == 1);
    CHECK(byoc_results_to_dlpack_versioned(results, 0, &own) == NULL && own->flags == 0);
    CHECK(copy->view.ndim == 0 && copy->view.data != marked->view.data && *(float *)copy->view.data == 2.5f);
    *(float *)copy->view.data = 7;
    CHECK(*(float *)marked->view.data == 2.5f && ((float *)own->view.data)[5] == 6);
    byoc_results_free(results);
    byoc_model_free(model);
    byoc_model_free(constant);
    byoc_session_free(session);
    CHECK(((float *)second->view.data)[9] == logit && second->view.shape[1] == 10 && third->view.ndim == 2);
    first->deleter(first);
    CHECK(((float *)third->view.data)[9] == logit);
    third->deleter(third);
    second->deleter(second);
    copy->deleter(copy);
    marked->deleter(marked);
    own->deleter(own);
    return 0;
}

/* Classifies an 8 x 8 grayscale image: digits MODEL < IMAGE, where IMAGE contains 64 values from 0 to 1. */
#include <byoc.h>
#include <stdio.h>

static int failed(byoc_error *error) {
    if (error == NULL) return 0;
    fprintf(stderr, "%s\n", byoc_error_text(error));
    byoc_error_free(error);
    return 1;
}

int main(int argc, char **argv) {
    float image[64], logits[10];
    int64_t image_shape[] = {1, 1, 8, 8}, logits_shape[] = {1, 10};
    byoc_dim batch = {"batch", 1};
    byoc_compile_options options = {.struct_size = sizeof options, .dims = &batch, .dim_count = 1};
    byoc_tensor_view input, output;
    byoc_session *session = NULL;
    byoc_model *model = NULL;
    int best = 0, status = 1;
    for (int i = 0; i < 64; i++)
        if (argc != 2 || scanf("%f", &image[i]) != 1) return 2;
    byoc_view(&input, "float32", image, image_shape, 4);
    byoc_view(&output, "float32", logits, logits_shape, 2);
    if (!failed(byoc_session_create(NULL, &session)) && !failed(byoc_model_compile(session, argv[1], &options, &model)) &&
        !failed(byoc_model_run(model, &input, 1, &output, 1, NULL))) {
        for (int i = 1; i < 10; i++)
            if (logits[i] > logits[best]) best = i;
        printf("%d\n", best);
        status = 0;
    }
    byoc_model_free(model);
    byoc_session_free(session);
    return status;
}

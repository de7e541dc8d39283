/* Calls of functions that compute operators (byoc export --extern). */
#ifndef BYOC_EXTERN_H
#define BYOC_EXTERN_H

#include <stdint.h>

/* Tensor that is read: row-major and contiguous; `type` is "float32", "int8", ... */
typedef struct {
    const void *data;
    const char *type;
    int32_t rank;
    const int32_t *shape;
} byoc_input;

/* Tensor that is written. */
typedef struct {
    void *data;
    const char *type;
    int32_t rank;
    const int32_t *shape;
} byoc_output;

/* Attribute: integers (also a single one, or a Boolean), a real number, or a text. */
typedef struct {
    const char *name;
    int32_t count;
    const int64_t *integers;
    double real;
    const char *text;
} byoc_attribute;

/* Call of an operator: its Relay name, its nodes in the model, its tensors and its attributes. */
typedef struct {
    const char *operator_name;
    const char *node;
    const byoc_input *inputs;
    int32_t input_count;
    const byoc_output *outputs;
    int32_t output_count;
    const byoc_attribute *attributes;
    int32_t attribute_count;
} byoc_call;

#endif

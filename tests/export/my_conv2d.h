#include "byoc_extern.h"
void my_conv2d(const byoc_call *call);

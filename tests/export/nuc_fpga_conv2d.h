/* Function for: byoc export MODEL --extern "qnn.conv2d=nuc_fpga_conv2d(nuc_fpga_conv2d.h)" --c DIR */
#ifndef NUC_FPGA_CONV2D_H
#define NUC_FPGA_CONV2D_H

#include "byoc_extern.h"

void nuc_fpga_conv2d(const byoc_call *call);

#endif

//! Error codes E06xx: run time.

codes! {
    KERNEL_FAILED = 601, "an operator could not be executed";
    UNKNOWN_INPUT = 602, "the model has no input of that name";
    INPUT_COUNT = 603, "an input is missing or given twice";
    INPUT_DTYPE = 604, "an input has the wrong element type";
    INPUT_SHAPE = 605, "an input has the wrong dimensions";
    NO_KERNEL = 606, "the host has no implementation of an operator";
    NOT_LOWERABLE = 607, "a module cannot be lowered to a program";
    BAD_PROGRAM = 608, "invalid program";
    OUT_OF_MEMORY = 609, "a tensor does not fit into memory";
    CALL_DEPTH = 610, "calls nested too deep";
    SIZE_UNKNOWN = 611, "the size of a result cannot be determined";
    NO_THREADS = 612, "the system cannot create threads";
    REGION_FAILED = 613, "a region violated its contract";
    BAD_LABELS = 614, "the labels do not match the output";
    NO_CLAUSE = 615, "a match has no clause for its value";
    CONSTANTS_GONE = 616, "a region needs constants that were released";
    CANCELLED = 617, "work was cancelled";
    TIMED_OUT = 618, "the time limit was reached";
    STEP_LIMIT = 619, "a loop does not terminate";
    DEVICE_LOST = 620, "a device was lost";
    OUTPUT_MEMORY = 621, "memory for an output does not have its type";
    INPUT_MEMORY = 622, "an input is in memory that the host cannot read";
    MODEL_GONE = 623, "a model was closed, or belongs to another process";
    MISSING_PACKAGE = 624, "a Python package is missing";
}

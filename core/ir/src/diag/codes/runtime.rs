//! Error codes E06xx: run time.

codes! {
    KERNEL_FAILED = 601, "operator execution failed";
    UNKNOWN_INPUT = 602, "unknown model input";
    INPUT_COUNT = 603, "missing or duplicate input";
    INPUT_DTYPE = 604, "wrong input element type";
    INPUT_SHAPE = 605, "wrong input dimensions";
    NO_KERNEL = 606, "operator has no host implementation";
    NOT_LOWERABLE = 607, "module cannot be lowered to a program";
    BAD_PROGRAM = 608, "invalid program";
    OUT_OF_MEMORY = 609, "out of memory";
    CALL_DEPTH = 610, "call depth limit reached";
    SIZE_UNKNOWN = 611, "result size cannot be determined";
    NO_THREADS = 612, "cannot create threads";
    REGION_FAILED = 613, "region violated its contract";
    BAD_LABELS = 614, "labels do not match the output";
    NO_CLAUSE = 615, "no clause matches the value";
    CONSTANTS_GONE = 616, "region constants already released";
    CANCELLED = 617, "run cancelled";
    TIMED_OUT = 618, "time limit exceeded";
    STEP_LIMIT = 619, "iteration limit reached";
    DEVICE_LOST = 620, "device lost";
    OUTPUT_MEMORY = 621, "output memory does not match the result type";
    INPUT_MEMORY = 622, "input memory not readable by the host";
    MODEL_GONE = 623, "model closed or owned by another process";
    MISSING_PACKAGE = 624, "missing Python package";
    SEQUENCE_INDEX = 625, "sequence position out of range";
    BAD_STRING = 626, "invalid string";
}

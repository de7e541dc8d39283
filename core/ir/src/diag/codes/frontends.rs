//! Error codes E05xx: frontends, tensor files and calibration data.

codes! {
    UNREADABLE_MODEL = 501, "the model file cannot be read";
    BROKEN_MODEL = 502, "the model is corrupt or inconsistent";
    UNSUPPORTED_OPERATOR = 503, "the model has operators that cannot be imported";
    UNBOUND_DIMENSION = 504, "a dimension of an input is not bound";
    BAD_NODE = 505, "an operator of the model is used in an unsupported way";
    BAD_EXTERNAL_DATA = 506, "the external data of a tensor cannot be used";
    BAD_TENSOR = 507, "the data of a tensor does not match its type";
    UNSUPPORTED_OPSET = 508, "the operator set version is not supported";
    NOT_CONSTANT = 509, "a value is not known at compile time";
    UNKNOWN_MODEL_FORMAT = 510, "unsupported model format";
    BAD_BINDING = 511, "a binding does not match the inputs of the model";
    BAD_TENSOR_FILE = 512, "a tensor file cannot be read";
    CANNOT_WRITE = 513, "a file cannot be written";
    MISSING_WEIGHTS = 514, "the weights of a text model cannot be read";
    UNKNOWN_ARCHITECTURE = 515, "no architecture of that name";
    BAD_TEST_FOLDER = 516, "not a folder in test-data layout";
    STDOUT_FAILED = 517, "standard output cannot be written";
    UNSUPPORTED_TYPE = 518, "an input or output of the model has an unsupported type";
    NOT_EXPORTABLE = 519, "a model cannot be exported as C";
    CALIBRATION_MISFIT = 530, "calibration data does not fit the model";
    CALIBRATION_NOT_FINITE = 531, "calibration data contains non-finite values";
    NO_CALIBRATION_DATA = 532, "no calibration data found";
    CALIBRATION_MADE_UP = 533, "a model is calibrated with random data";
    DIMENSIONS_FIXED = 534, "quantization fixed the symbolic dimensions of a model";
}

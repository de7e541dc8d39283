//! Error codes E05xx: frontends, tensor files and calibration data.

codes! {
    UNREADABLE_MODEL = 501, "cannot read model file";
    BROKEN_MODEL = 502, "corrupt or inconsistent model";
    UNSUPPORTED_OPERATOR = 503, "unsupported operators in model";
    UNBOUND_DIMENSION = 504, "unbound input dimension";
    BAD_NODE = 505, "unsupported use of an operator";
    BAD_EXTERNAL_DATA = 506, "invalid external tensor data";
    BAD_TENSOR = 507, "tensor data does not match its type";
    UNSUPPORTED_OPSET = 508, "unsupported operator set version";
    NOT_CONSTANT = 509, "value not known at compile time";
    UNKNOWN_MODEL_FORMAT = 510, "unsupported model format";
    BAD_BINDING = 511, "binding does not match the model inputs";
    BAD_TENSOR_FILE = 512, "cannot read tensor file";
    CANNOT_WRITE = 513, "cannot write file";
    MISSING_WEIGHTS = 514, "cannot read weights of text model";
    UNKNOWN_ARCHITECTURE = 515, "unknown architecture";
    BAD_TEST_FOLDER = 516, "not a directory in test-data layout";
    STDOUT_FAILED = 517, "cannot write to standard output";
    UNSUPPORTED_TYPE = 518, "unsupported input or output type";
    NOT_EXPORTABLE = 519, "model cannot be exported as C";
    CYCLE = 520, "nodes in a cycle";
    MISSING_VALUE = 521, "value that nothing provides";
    DUPLICATE_VALUE = 522, "duplicate value name";
    UNKNOWN_DOMAIN = 523, "operator domain without an import";
    STRING_MISUSE = 524, "string where a number is expected, or the reverse";
    BAD_PATTERN = 525, "invalid pattern";
    NO_ONNX_FORM = 526, "operator without a form in ONNX";
    CALIBRATION_MISFIT = 530, "calibration data does not match the model";
    CALIBRATION_NOT_FINITE = 531, "non-finite calibration data";
    NO_CALIBRATION_DATA = 532, "no calibration data found";
    CALIBRATION_MADE_UP = 533, "model calibrated with random data";
    DIMENSIONS_FIXED = 534, "symbolic dimensions fixed by quantization";
}

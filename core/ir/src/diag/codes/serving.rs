//! Error codes E08xx: the inference server.

codes! {
    SERVE_OPTIONS = 801, "invalid server options";
    ADDRESS = 802, "cannot listen on address";
    REPOSITORY = 803, "invalid model repository or configuration";
    BAD_REQUEST = 804, "malformed request";
    BAD_TENSOR = 805, "request tensor does not match the model";
    UNKNOWN_MODEL = 806, "unknown model or version";
    NOT_READY = 807, "server or model not ready";
    OVERLOADED = 808, "server overloaded";
    NOT_SERVED = 809, "unsupported or disallowed protocol feature";
    SHARED_MEMORY = 810, "invalid shared memory region";
}

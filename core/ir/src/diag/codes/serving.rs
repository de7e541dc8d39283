//! Error codes E08xx: the inference server.

codes! {
    SERVE_OPTIONS = 801, "the server cannot start with its options";
    ADDRESS = 802, "the server cannot listen on an address";
    REPOSITORY = 803, "a model repository or a model configuration is invalid";
    BAD_REQUEST = 804, "a request is malformed";
    BAD_TENSOR = 805, "a tensor of a request does not fit the model";
    UNKNOWN_MODEL = 806, "the server has no model or version of that name";
    NOT_READY = 807, "the server or a model is not ready";
    OVERLOADED = 808, "the server cannot take a request now";
    NOT_SERVED = 809, "a part of the protocol is not served or not allowed";
    SHARED_MEMORY = 810, "a region of shared memory cannot be used";
}

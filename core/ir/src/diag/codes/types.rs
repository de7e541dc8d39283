//! Error codes E02xx: types.

codes! {
    TYPE_MISMATCH = 201, "type mismatch";
    BAD_ATTRIBUTE = 202, "missing, unknown or invalid attribute";
    BAD_ARITY = 203, "wrong number of arguments";
    UNKNOWN_OPERATOR = 204, "unknown operator";
    CANNOT_INFER = 205, "cannot infer type";
    TYPE_TOO_LARGE = 206, "type too large";
    BAD_STRUCTURE = 207, "IR invariant violated";
    OUT_OF_SCOPE = 208, "variable used outside its scope";
    BAD_QUANTIZATION = 209, "invalid quantization scale";
    MISSING_CLAUSE = 210, "non-exhaustive match";
}

//! Error codes E02xx: types.

codes! {
    TYPE_MISMATCH = 201, "types do not agree";
    BAD_ATTRIBUTE = 202, "an attribute is missing, unknown or of the wrong kind";
    BAD_ARITY = 203, "wrong number of arguments";
    UNKNOWN_OPERATOR = 204, "no operator of that name";
    CANNOT_INFER = 205, "a type cannot be inferred";
    TYPE_TOO_LARGE = 206, "a type has too many parts, or too many elements";
    BAD_STRUCTURE = 207, "a module violates an invariant of the IR";
    OUT_OF_SCOPE = 208, "a variable is used outside its scope";
    BAD_QUANTIZATION = 209, "a quantization scale is not finite and positive";
    MISSING_CLAUSE = 210, "a match does not cover every value";
}

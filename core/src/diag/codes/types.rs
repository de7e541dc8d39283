//! E02xx: types.

codes! {
    TYPE_MISMATCH = 201, "types do not agree";
    BAD_ATTRIBUTE = 202, "an attribute is missing, unknown or of the wrong kind";
    BAD_ARITY = 203, "wrong number of arguments";
    UNKNOWN_OPERATOR = 204, "no operator of that name";
}

//! Error codes E01xx: the text format.

codes! {
    UNEXPECTED_TOKEN = 101, "unexpected token";
    BAD_VERSION = 102, "the version line is missing or names another version";
    BAD_NUMBER = 103, "a number is malformed or does not fit its type";
    UNTERMINATED = 104, "a string or comment does not end";
    UNKNOWN_NAME = 105, "a variable, graph binding or global is not defined";
    DUPLICATE_NAME = 106, "a name is defined twice";
    BAD_METADATA = 107, "a metadata reference has no data";
    NESTING_TOO_DEEP = 108, "types, patterns or lists nest too deep";
    TOO_LARGE = 110, "the text is too large";
}

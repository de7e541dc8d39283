//! Error codes E01xx: the text format.

codes! {
    UNEXPECTED_TOKEN = 101, "unexpected token";
    BAD_VERSION = 102, "missing or unsupported version line";
    BAD_NUMBER = 103, "malformed or out-of-range number";
    UNTERMINATED = 104, "unterminated string or comment";
    UNKNOWN_NAME = 105, "undefined variable, graph binding or global";
    DUPLICATE_NAME = 106, "duplicate name";
    BAD_METADATA = 107, "invalid metadata reference";
    NESTING_TOO_DEEP = 108, "types, patterns or lists nested too deeply";
    TOO_LARGE = 110, "text too large";
}

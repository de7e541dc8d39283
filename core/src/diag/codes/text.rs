//! E01xx: the text format.

codes! {
    UNEXPECTED_TOKEN = 101, "unexpected token";
}

//! E04xx: plugins.

codes! {
    NO_CODEGEN = 401, "no code generator of that name";
}

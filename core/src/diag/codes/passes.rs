//! E03xx: passes.

codes! {
    UNKNOWN_PASS = 301, "no such pass";
}

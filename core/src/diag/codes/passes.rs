//! E03xx: passes.

codes! {
    UNKNOWN_PASS = 301, "no such pass";
    NOT_DATA_FLOW = 390, "a region is not data flow";
}

//! E06xx: run time.

codes! {
    KERNEL_FAILED = 601, "an operator could not be computed";
}

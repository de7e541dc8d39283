//! E05xx: model readers.

codes! {
    UNREADABLE_MODEL = 501, "the model file cannot be read";
}

//! E07xx: artifacts.

codes! {
    NOT_AN_ARTIFACT = 701, "not a byoc artifact";
    DAMAGED = 702, "an artifact that is damaged";
    UNSUPPORTED_VERSION = 703, "an artifact of another format version";
    MALFORMED = 704, "an artifact whose contents contradict each other";
    CANNOT_READ = 705, "an artifact that cannot be read";
    CANNOT_WRITE = 706, "an artifact that cannot be written";
    NATIVE_CODE = 707, "an artifact with native code, which is not allowed";
}

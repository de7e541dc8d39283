//! Error codes E07xx: artifacts.

codes! {
    NOT_AN_ARTIFACT = 701, "not a byoc artifact";
    DAMAGED = 702, "damaged artifact";
    UNSUPPORTED_VERSION = 703, "unsupported artifact format version";
    MALFORMED = 704, "inconsistent artifact";
    CANNOT_READ = 705, "an artifact cannot be read";
    CANNOT_WRITE = 706, "an artifact cannot be written";
    NATIVE_CODE = 707, "loading native code from an artifact is not allowed";
    NO_RUNNER = 708, "the program for bundles is missing";
    NOT_BUNDLABLE = 709, "an artifact cannot be bundled";
    NOT_A_BUNDLE = 710, "not a bundle";
    DAMAGED_BUNDLE = 711, "damaged bundle";
    CONSTANTS_IN_BLOB = 712, "a region cannot run on the host, because its constants are only in its blob";
}

//! Error codes E07xx: artifacts.

codes! {
    NOT_AN_ARTIFACT = 701, "not a byoc artifact";
    DAMAGED = 702, "damaged artifact";
    UNSUPPORTED_VERSION = 703, "unsupported artifact format version";
    MALFORMED = 704, "inconsistent artifact";
    CANNOT_READ = 705, "cannot read artifact";
    CANNOT_WRITE = 706, "cannot write artifact";
    NATIVE_CODE = 707, "native code from artifacts not allowed";
    NO_RUNNER = 708, "bundle runner not found";
    NOT_BUNDLABLE = 709, "artifact cannot be bundled";
    NOT_A_BUNDLE = 710, "not a bundle";
    DAMAGED_BUNDLE = 711, "damaged bundle";
    CONSTANTS_IN_BLOB = 712, "region constants stored only in the blob";
}

//! Error codes E04xx: plugins.

codes! {
    NO_CODEGEN = 401, "no code generator of that name";
    NO_LOADER = 402, "no loader for a compiled region";
    BACKEND_MISPLACED = 403, "a backend is named in place of something else, or vice versa";
    TOOK_NOTHING = 404, "a requested backend was assigned no operators, or too few";
    MISSING_SYMBOL = 405, "a region's library lacks a declared symbol";
    PLUGIN_FAULT = 406, "a plugin failed or panicked";
    BAD_PATTERN_TABLE = 407, "invalid entry in the pattern table of a plugin";
    BAD_DESCRIPTION = 408, "a plugin's description cannot be read";
    DUPLICATE_REGISTRATION = 409, "two plugins in one directory register the same name";
    UNREADABLE_PLUGIN = 410, "a plugin file cannot be read";
    NOT_A_LIBRARY = 411, "a plugin file is not a shared library for this system";
    OTHER_MACHINE = 412, "a plugin was built for another processor architecture";
    TRUNCATED_PLUGIN = 413, "a plugin file is truncated";
    NO_ENTRY_SYMBOL = 414, "a shared library has no plugin entry symbol";
    DLOPEN_FAILED = 415, "the dynamic loader rejected a plugin";
    API_VERSION = 416, "a plugin was built against another version of the boundary";
    API_LAYOUT = 417, "a plugin was built against another layout of the boundary";
    INIT_FAILED = 418, "a plugin's init returned an error";
    INIT_PANICKED = 419, "a plugin's init panicked";
    BAD_REGISTRATION = 420, "a name that a plugin registers is malformed";
    BAD_GRAPH = 421, "a graph exchanged with a plugin is inconsistent";
    SHADOWED = 422, "a plugin is shadowed by one in an earlier directory";
    REGION_NOT_COMPILED = 423, "a region could not be compiled and runs on the host";
    BLOB_TOO_LARGE = 424, "a compiled region exceeds the size limit of its backend";
    CANNOT_CREATE = 425, "a new plugin cannot be written";
    CALLED_OFF = 426, "a build was cancelled";
    UNKNOWN_OPTION = 427, "unknown option of a backend, or invalid value of an option";
    RECOMPILED = 428, "regions of an artifact were compiled again";
    NO_SCHEME = 430, "no valid quantization scheme";
    BAD_CASE = 440, "a file is not a case of a conformance run";
    NOT_CONFORMING = 441, "a plugin violates its contract";
    PLUGIN_ENDED = 450, "a plugin ended the process";
    PLUGIN_LATE = 451, "a plugin did not return in time, or used too much memory";
    PROCESS_STATE = 452, "a plugin changed process-wide state";
}

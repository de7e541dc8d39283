//! E04xx: plugins.

codes! {
    NO_CODEGEN = 401, "no code generator of that name";
    NO_LOADER = 402, "no loader for a compiled region";
    BACKEND_MISPLACED = 403, "a backend is named where something else is meant, or the other way round";
    TOOK_NOTHING = 404, "a backend that was asked for took nothing, or too little";
    MISSING_SYMBOL = 405, "a region's library lacks a symbol that was promised";
    PLUGIN_FAULT = 406, "a plugin failed or panicked";
    BAD_PATTERN_TABLE = 407, "an entry of a plugin's pattern table is wrong";
    BAD_DESCRIPTION = 408, "a plugin's description cannot be read";
    DUPLICATE_REGISTRATION = 409, "two plugins in one directory register the same name";
    UNREADABLE_PLUGIN = 410, "a plugin file cannot be read";
    NOT_A_LIBRARY = 411, "a plugin file is no shared library for this system";
    OTHER_MACHINE = 412, "a plugin file is for another processor";
    TRUNCATED_PLUGIN = 413, "a plugin file ends before its contents do";
    NO_ENTRY_SYMBOL = 414, "a shared library without a plugin entry symbol";
    DLOPEN_FAILED = 415, "the system's loader turned a plugin down";
    API_VERSION = 416, "a plugin was built against another version of the boundary";
    API_LAYOUT = 417, "a plugin was built against another layout of the boundary";
    INIT_FAILED = 418, "a plugin's init gave an error";
    INIT_PANICKED = 419, "a plugin's init panicked";
    BAD_REGISTRATION = 420, "a name that a plugin registers is malformed";
    BAD_GRAPH = 421, "a graph that crossed the boundary is inconsistent";
    SHADOWED = 422, "a plugin is shadowed by one in an earlier directory";
    REGION_NOT_COMPILED = 423, "a region could not be compiled and runs on the host";
    BLOB_TOO_LARGE = 424, "a compiled region is larger than its backend says that one may be";
    CANNOT_CREATE = 425, "a new plugin cannot be written";
    CALLED_OFF = 426, "a build was called off";
    UNKNOWN_OPTION = 427, "a backend has no such option, or the option no such value";
    NO_SCHEME = 430, "no scheme to quantize a model by";
    BAD_CASE = 440, "a file is no case of a conformance run";
    NOT_CONFORMING = 441, "a plugin does not keep what it promises";
    PLUGIN_ENDED = 450, "a plugin ended the process";
    PLUGIN_LATE = 451, "a plugin did not come back in time, or took too much memory";
    PROCESS_STATE = 452, "a plugin changed what belongs to the process";
}

//! Error codes E04xx: plugins.

codes! {
    NO_CODEGEN = 401, "unknown code generator";
    NO_LOADER = 402, "missing loader for compiled region";
    BACKEND_MISPLACED = 403, "misplaced argument";
    TOOK_NOTHING = 404, "too few operators assigned to backend";
    MISSING_SYMBOL = 405, "missing symbol in region library";
    PLUGIN_FAULT = 406, "plugin failed or panicked";
    BAD_PATTERN_TABLE = 407, "invalid pattern table entry";
    BAD_DESCRIPTION = 408, "invalid plugin description";
    DUPLICATE_REGISTRATION = 409, "duplicate registration in plugin directory";
    UNREADABLE_PLUGIN = 410, "cannot read plugin file";
    NOT_A_LIBRARY = 411, "plugin is not a shared library for this system";
    OTHER_MACHINE = 412, "plugin built for another processor architecture";
    TRUNCATED_PLUGIN = 413, "truncated plugin file";
    NO_ENTRY_SYMBOL = 414, "no plugin entry symbol in shared library";
    DLOPEN_FAILED = 415, "plugin rejected by the dynamic loader";
    API_VERSION = 416, "incompatible boundary version";
    API_LAYOUT = 417, "incompatible boundary layout";
    INIT_FAILED = 418, "plugin initialization failed";
    INIT_PANICKED = 419, "plugin initialization panicked";
    BAD_REGISTRATION = 420, "invalid plugin registration";
    BAD_GRAPH = 421, "inconsistent graph at the plugin boundary";
    SHADOWED = 422, "shadowed plugin";
    REGION_NOT_COMPILED = 423, "region compilation failed, falling back to the host";
    BLOB_TOO_LARGE = 424, "compiled region exceeds the backend's size limit";
    CANNOT_CREATE = 425, "cannot create plugin";
    BUILD_CANCELLED = 426, "build cancelled";
    UNKNOWN_OPTION = 427, "invalid backend option";
    RECOMPILED = 428, "artifact regions recompiled";
    NO_HOST_FORM = 429, "operator that only a backend computes";
    NO_SCHEME = 430, "no valid quantization scheme";
    BAD_CASE = 440, "not a conformance case file";
    NOT_CONFORMING = 441, "plugin violates its contract";
    PLUGIN_ENDED = 450, "process terminated by a plugin";
    PLUGIN_LATE = 451, "plugin exceeded its time or memory limit";
    PROCESS_STATE = 452, "process-wide state changed by a plugin";
    PYTHON_BACKEND = 460, "Python function of a backend failed";
    BAD_CONTRACT = 461, "invalid contract";
    CONTRACT_VIOLATED = 462, "contract violated";
}

//! Error codes E03xx: passes.

codes! {
    UNKNOWN_PASS = 301, "unknown pass";
    PATTERN_SYNTAX = 310, "syntax error in pattern";
    PATTERN_OPERATOR = 311, "unknown operator in pattern";
    PATTERN_NAME = 312, "undefined or duplicate name in pattern";
    PATTERN_ATTRIBUTE = 313, "unknown attribute in pattern";
    PATTERN_CHECK = 314, "check not allowed in pattern file";
    PATTERN_ARITY = 315, "wrong number of arguments in pattern";
    PATTERN_FUNCTION = 316, "bare function pattern cannot form a composite";
    REWRITE_WITHOUT_END = 317, "rewriting does not terminate";
    PYTHON_FUNCTION = 318, "Python function of a pattern or a pass failed";
    UNKNOWN_TARGET_OPERATOR = 320, "unknown operator in annotation rule";
    BAD_ANNOTATION = 330, "inconsistent region annotations";
    REGION_CYCLE = 331, "region depends on its own result";
    UNKNOWN_GLOBAL = 340, "unknown global function";
    BAD_LAYOUT = 341, "unsupported layout";
    NOT_OF_A_BACKEND = 342, "function not assigned to a backend";
    INLINE_TOO_LARGE = 343, "inlined module too large";
    BAD_OUTLINE = 344, "region function cannot be outlined";
    DUPLICATE_PARAMETER = 345, "duplicate parameter in fused function";
    NOT_EQUAL = 350, "result differs from expected module";
    NOTHING_TO_QUANTIZE = 360, "no quantizable layer";
    UNKNOWN_LAYER = 361, "unknown layer";
    NOT_DATA_FLOW = 390, "region is not pure data flow";
}

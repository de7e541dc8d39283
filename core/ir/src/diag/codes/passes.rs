//! Error codes E03xx: passes.

codes! {
    UNKNOWN_PASS = 301, "no such pass";
    PATTERN_SYNTAX = 310, "a pattern has a syntax error";
    PATTERN_OPERATOR = 311, "a pattern names an operator that does not exist";
    PATTERN_NAME = 312, "a name in a pattern is unknown or taken";
    PATTERN_ATTRIBUTE = 313, "a pattern requires an attribute that the operator does not have";
    PATTERN_CHECK = 314, "a pattern file cannot have checks";
    PATTERN_ARITY = 315, "a pattern has the wrong number of arguments for an operator";
    PATTERN_FUNCTION = 316, "a bare function pattern cannot form a composite";
    REWRITE_WITHOUT_END = 317, "rewriting does not terminate";
    UNKNOWN_TARGET_OPERATOR = 320, "a rule names an operator that does not exist";
    BAD_ANNOTATION = 330, "annotations do not agree";
    REGION_CYCLE = 331, "a region depends on its own result";
    UNKNOWN_GLOBAL = 340, "no such global function";
    BAD_LAYOUT = 341, "unsupported layout";
    NOT_OF_A_BACKEND = 342, "a function is not assigned to a backend";
    INLINE_TOO_LARGE = 343, "inlining makes the module too large";
    BAD_OUTLINE = 344, "a region function cannot become a global function";
    DUPLICATE_PARAMETER = 345, "parameters of a fused function share a name";
    BAD_REGION_FUNCTION = 346, "a rewritten region does not match the original";
    NOT_EQUAL = 350, "the result differs from the expected module";
    NOTHING_TO_QUANTIZE = 360, "no layer of the model can be quantized";
    UNKNOWN_LAYER = 361, "the model has no layer of that name";
    NOT_DATA_FLOW = 390, "a region is not pure data flow";
}

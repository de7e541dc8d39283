/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* byoc_json.h: reader of JSON texts, as they cross in byoc_plugin.h. Optional; any other JSON library works as well.
 *
 * A byoc_json is a position in JSON text: nothing is allocated or freed, and the text must outlive it. A missing value
 * is byoc_json_none(); every function accepts it and returns its fallback for it, so that a chain of lookups needs one
 * check, at its end. No function reads beyond the text, whatever it contains.
 *
 *     byoc_json graph = byoc_json_of(candidate->graph);
 *     byoc_json node = byoc_json_first(byoc_json_get(graph, "nodes"));
 *     for (; byoc_json_there(node); node = byoc_json_next(node)) {
 *         if (byoc_json_is(byoc_json_get(node, "op"), "nn.relu")) ...
 *     }
 */
#ifndef BYOC_JSON_H
#define BYOC_JSON_H

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if defined(__GNUC__)
#define BYOC_JSON_INLINE static inline __attribute__((always_inline))
#else
#define BYOC_JSON_INLINE static inline
#endif

typedef struct byoc_json {
    const char *at;
    const char *end;
} byoc_json;

/* Maximum nesting depth of a JSON text. A graph with composites nests about ten deep. */
#define BYOC_JSON_DEPTH 128

static inline byoc_json byoc_json_none(void) {
    byoc_json none = {NULL, NULL};
    return none;
}

static inline const char *byoc_json_space(const char *at, const char *end) {
    /* Fast path: there is rarely any whitespace. */
    while (at < end && (unsigned char)*at <= ' ' && (*at == ' ' || *at == '\n' || *at == '\t' || *at == '\r')) at++;
    return at;
}

/* Marks the bytes among eight that equal `letter`: the lowest set bit, if any, belongs to the first match. (Above it, a
 * byte that differs from `letter` may be marked too.) */
static inline uint64_t byoc_json_marks(uint64_t letters, unsigned char letter) {
    const uint64_t ones = 0x0101010101010101u;
    const uint64_t differ = letters ^ (ones * letter);
    return (differ - ones) & ~differ & (ones << 7);
}

/* Returns the end of the string that begins with a quotation mark at `at`; NULL if it is not terminated. */
static inline const char *byoc_json_past_text(const char *at, const char *end) {
    at++;
    while (at < end) {
#if defined(__GNUC__) && defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
        /* Eight bytes at a time: most strings are names. */
        if (end - at >= 8) {
            uint64_t letters, quotes, escapes;
            memcpy(&letters, at, 8);
            quotes = byoc_json_marks(letters, '"');
            escapes = byoc_json_marks(letters, '\\');
            if ((quotes | escapes) == 0) {
                at += 8;
                continue;
            }
            if (escapes == 0) return at + __builtin_ctzll(quotes) / 8 + 1;
        }
#endif
        if (*at == '"') return at + 1;
        if (*at == '\\' && end - at == 1) return NULL;
        at += *at == '\\' ? 2 : 1; /* an escaped quotation mark does not end the string */
    }
    return NULL;
}

/* Returns the end of a number, true, false or null; NULL if there is none. */
static inline const char *byoc_json_past_word(const char *at, const char *end) {
    const char *start = at;
    while (at < end && ((*at >= '0' && *at <= '9') || (*at >= 'a' && *at <= 'z') || *at == '-' || *at == '+' || *at == '.' ||
                        *at == 'E')) {
        at++;
    }
    return at == start ? NULL : at;
}

/* Returns the end of the value that begins at `at`; NULL if it does not end. Only brackets and quotation marks are
 * counted here: byoc_json_parse has checked commas and colons. */
static inline const char *byoc_json_past(const char *at, const char *end) {
    size_t depth = 0;
    if (at >= end) return NULL;
    if (*at == '"') return byoc_json_past_text(at, end);
    if (*at != '{' && *at != '[') return byoc_json_past_word(at, end);
    while (at < end) {
        const char letter = *at++;
        if (letter < '[') { /* most characters of a list of numbers */
            if (letter != '"') continue;
            at = byoc_json_past_text(at - 1, end);
            if (at == NULL) return NULL;
        } else if (letter == '{' || letter == '[') {
            depth++;
        } else if ((letter == '}' || letter == ']') && --depth == 0) {
            return at;
        }
    }
    return NULL;
}

/* Returns the end of the value that begins at `at` and checks all of it; NULL if it is not JSON, does not end, or nests
 * too deeply. Not recursive. */
static inline const char *byoc_json_checked(const char *at, const char *end) {
    char open[BYOC_JSON_DEPTH];
    size_t depth = 0;
    int comma_allowed = 0;
    do {
        at = byoc_json_space(at, end);
        if (at >= end) return NULL;
        if (*at == '{' || *at == '[') {
            if (depth == BYOC_JSON_DEPTH) return NULL;
            open[depth++] = *at == '{' ? '}' : ']';
            at++;
            comma_allowed = 0;
        } else if (*at == '}' || *at == ']') {
            if (depth == 0 || open[depth - 1] != *at) return NULL;
            depth--;
            at++;
            comma_allowed = 1;
        } else if (*at == ',' || *at == ':') {
            if (!comma_allowed) return NULL;
            at++;
            comma_allowed = 0;
        } else {
            if (comma_allowed) return NULL;
            at = *at == '"' ? byoc_json_past_text(at, end) : byoc_json_past_word(at, end);
            if (at == NULL) return NULL;
            comma_allowed = 1;
        }
    } while (depth > 0);
    return at;
}

/* Returns the value of a JSON text; byoc_json_none() if it is truncated or not JSON. For untrusted text: a blob that
 * was read from a file. */
static inline byoc_json byoc_json_parse(const char *text, size_t size) {
    byoc_json value;
    const char *past;
    if (text == NULL) return byoc_json_none();
    value.end = text + size;
    value.at = byoc_json_space(text, value.end);
    past = byoc_json_checked(value.at, value.end);
    if (past == NULL || byoc_json_space(past, value.end) != value.end) return byoc_json_none();
    return value;
}

/* Returns the value of a JSON text of the host, which is terminated by a NUL and is valid JSON: it is not checked,
 * which saves a third of the time for thousands of candidates. */
static inline byoc_json byoc_json_of(const char *text) {
    byoc_json value;
    value.at = text;
    value.end = text + strlen(text);
    return value;
}

/* Returns 1 if the value exists. */
static inline int byoc_json_there(byoc_json value) { return value.at != NULL; }

/* Returns the first item of a list. */
static inline byoc_json byoc_json_first(byoc_json list) {
    if (list.at == NULL || list.at >= list.end || *list.at != '[') return byoc_json_none();
    list.at = byoc_json_space(list.at + 1, list.end);
    if (list.at >= list.end || *list.at == ']') return byoc_json_none();
    return list;
}

/* Returns the item that follows the one ending at `at`. */
static inline byoc_json byoc_json_behind(const char *at, const char *end) {
    byoc_json item;
    at = byoc_json_space(at, end);
    if (at >= end || *at != ',') return byoc_json_none();
    item.at = byoc_json_space(at + 1, end);
    item.end = end;
    return item.at < end ? item : byoc_json_none();
}

/* Returns the next item of the list. */
static inline byoc_json byoc_json_next(byoc_json item) {
    const char *at;
    if (item.at == NULL) return byoc_json_none();
    at = byoc_json_past(item.at, item.end);
    return at == NULL ? byoc_json_none() : byoc_json_behind(at, item.end);
}

/* Returns item `index` of a list. */
static inline byoc_json byoc_json_at(byoc_json list, size_t index) {
    byoc_json item = byoc_json_first(list);
    while (index-- > 0 && item.at != NULL) item = byoc_json_next(item);
    return item;
}

/* Number of items of a list. */
static inline size_t byoc_json_count(byoc_json list) {
    size_t count = 0;
    byoc_json item;
    for (item = byoc_json_first(list); byoc_json_there(item); item = byoc_json_next(item)) count++;
    return count;
}

/* Returns 1 if the value is a string that equals `text`. (A string with escapes never does: no name in a graph has
 * one.) */
BYOC_JSON_INLINE int byoc_json_is(byoc_json value, const char *text) {
    size_t length = strlen(text);
    return value.at != NULL && (size_t)(value.end - value.at) >= length + 2 && *value.at == '"' &&
           memcmp(value.at + 1, text, length) == 0 && value.at[length + 1] == '"';
}

/* Returns a field of an object. */
static inline byoc_json byoc_json_get(byoc_json object, const char *key) {
    const char *at, *past;
    size_t length = strlen(key);
    if (object.at == NULL || object.at >= object.end || *object.at != '{') return byoc_json_none();
    at = byoc_json_space(object.at + 1, object.end);
    while (at < object.end && *at == '"') {
        int found;
        past = byoc_json_past_text(at, object.end);
        if (past == NULL) return byoc_json_none();
        found = (size_t)(past - at) == length + 2 && memcmp(at + 1, key, length) == 0;
        past = byoc_json_space(past, object.end);
        if (past >= object.end || *past != ':') return byoc_json_none();
        past = byoc_json_space(past + 1, object.end);
        if (found) {
            object.at = past;
            return past < object.end ? object : byoc_json_none();
        }
        past = byoc_json_past(past, object.end);
        if (past == NULL) return byoc_json_none();
        at = byoc_json_space(past, object.end);
        if (at >= object.end || *at != ',') return byoc_json_none();
        at = byoc_json_space(at + 1, object.end);
    }
    return byoc_json_none();
}

/* Returns 1 if a string of this length equals the key. */
static inline int byoc_json_same(const char *text, size_t length, const char *key) {
    size_t i = 0;
    while (i < length && text[i] == key[i]) i++; /* stops at the key's NUL, which never occurs in JSON text */
    return i == length && key[i] == 0;
}

/* Looks up several fields of an object in one pass: values[i] becomes the field keys[i], or byoc_json_none() if it is
 * missing. Returns the end of the object, or the position after the last requested field if `whole` is 0; NULL if it is
 * not an object. Cheapest if the keys are in the order of byoc_plugin.h's JSON. */
static inline const char *byoc_json_scan(byoc_json object, const char *const *keys, byoc_json *values, size_t count, int whole) {
    size_t i, left = count, next = 0;
    const char *at, *past;
    for (i = 0; i < count; i++) values[i] = byoc_json_none();
    if (object.at == NULL || object.at >= object.end || *object.at != '{') return NULL;
    at = byoc_json_space(object.at + 1, object.end);
    while (at < object.end && *at == '"') {
        const char *key = at + 1;
        size_t length;
        past = byoc_json_past_text(at, object.end);
        if (past == NULL) return NULL;
        length = (size_t)(past - key) - 1;
        past = byoc_json_space(past, object.end);
        if (past >= object.end || *past != ':') return NULL;
        at = byoc_json_space(past + 1, object.end);
        if (at >= object.end) return NULL;
        for (i = 0; i < count && left > 0; i++) {
            const size_t which = next + i < count ? next + i : next + i - count;
            if (!byoc_json_there(values[which]) && byoc_json_same(key, length, keys[which])) {
                values[which].at = at;
                values[which].end = object.end;
                next = which + 1;
                left--;
                break;
            }
        }
        if (left == 0 && !whole) return at;
        past = byoc_json_past(at, object.end);
        if (past == NULL) return NULL;
        at = byoc_json_space(past, object.end);
        if (at >= object.end || *at != ',') break;
        at = byoc_json_space(at + 1, object.end);
    }
    return at < object.end && *at == '}' ? at + 1 : NULL;
}

/* Looks up several fields of an object in one pass: values[i] becomes the field keys[i], or byoc_json_none() if it is
 * missing. */
static inline void byoc_json_fields(byoc_json object, const char *const *keys, byoc_json *values, size_t count) {
    byoc_json_scan(object, keys, values, count, 0);
}

/* Does the same for an object in a list, and returns the next item: a list of objects is read in one pass. */
static inline byoc_json byoc_json_next_fields(byoc_json object, const char *const *keys, byoc_json *values, size_t count) {
    const char *past = byoc_json_scan(object, keys, values, count, 1);
    return past == NULL ? byoc_json_none() : byoc_json_behind(past, object.end);
}

/* Copies the characters of a number out of the text, which need not end with a NUL; returns 0 if there is no number. */
static inline int byoc_json_number(byoc_json value, char *digits, size_t size) {
    const char *past;
    size_t length;
    if (value.at == NULL || value.at >= value.end || !((*value.at >= '0' && *value.at <= '9') || *value.at == '-')) return 0;
    past = byoc_json_past_word(value.at, value.end);
    if (past == NULL) return 0;
    length = (size_t)(past - value.at);
    if (length >= size) return 0;
    memcpy(digits, value.at, length);
    digits[length] = 0;
    return 1;
}

/* Returns the number as an integer. */
static inline int64_t byoc_json_int(byoc_json value, int64_t otherwise) {
    char digits[64];
    const char *at = value.at;
    int64_t number = 0;
    /* Fast path: sizes and strides are short and unsigned; avoids strtoll. */
    while (at != NULL && at < value.end && *at >= '0' && *at <= '9' && at - value.at < 18) number = number * 10 + (*at++ - '0');
    if (at != NULL && at > value.at && at < value.end && (*at == ',' || *at == ']' || *at == '}')) return number;
    return byoc_json_number(value, digits, sizeof digits) ? (int64_t)strtoll(digits, NULL, 10) : otherwise;
}

/* Reads the integers of a list, up to `room` of them, in one pass; items that are not integers become `otherwise`.
 * Returns the number of items of the list, which may exceed `room`. */
static inline size_t byoc_json_ints(byoc_json list, int64_t *numbers, size_t room, int64_t otherwise) {
    size_t count = 0;
    byoc_json item = byoc_json_first(list);
    while (byoc_json_there(item)) {
        /* Fast path: dimensions and strides are short and unsigned. */
        const char *at = item.at;
        int64_t number = 0;
        while (at < item.end && (unsigned char)(*at - '0') < 10 && at - item.at < 18) number = number * 10 + (*at++ - '0');
        if (at > item.at && at < item.end && (*at == ',' || *at == ']')) {
            item = byoc_json_behind(at, item.end);
        } else {
            number = byoc_json_int(item, otherwise);
            item = byoc_json_next(item);
        }
        if (count < room) numbers[count] = number;
        count++;
    }
    return count;
}

/* Returns the number. (The three floats without a JSON representation cross as {"float": "nan"}, "inf" and "-inf".) */
static inline double byoc_json_float(byoc_json value, double otherwise) {
    char digits[64];
    byoc_json special = byoc_json_get(value, "float");
    if (byoc_json_is(special, "nan")) return strtod("nan", NULL);
    if (byoc_json_is(special, "inf")) return strtod("inf", NULL);
    if (byoc_json_is(special, "-inf")) return strtod("-inf", NULL);
    return byoc_json_number(value, digits, sizeof digits) ? strtod(digits, NULL) : otherwise;
}

/* Returns the boolean. */
static inline int byoc_json_bool(byoc_json value, int otherwise) {
    if (value.at == NULL) return otherwise;
    if (value.end - value.at >= 4 && memcmp(value.at, "true", 4) == 0) return 1;
    if (value.end - value.at >= 5 && memcmp(value.at, "false", 5) == 0) return 0;
    return otherwise;
}

/* Reads the four hexadecimal digits of an escape; -1 if there are no four. */
static inline long byoc_json_hex(const char *at, const char *end) {
    long code = 0;
    int i;
    if (end - at < 4) return -1;
    for (i = 0; i < 4; i++) {
        char c = at[i];
        int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
        if (digit < 0) return -1;
        code = code * 16 + digit;
    }
    return code;
}

/* Reads one character of a string, or one escape, and moves past it. Writes its UTF-8 form, at most 4 bytes, and returns
 * the number of bytes. Half of a surrogate pair, and an escape that JSON does not have, become U+FFFD. */
static inline size_t byoc_json_character(const char **at, const char *end, char *out) {
    static const char names[] = "\"\\/bfnrt", values[] = "\"\\/\b\f\n\r\t";
    const char *name;
    long code = 0xfffd, low;
    if (**at != '\\' || end - *at < 2) {
        size_t count = 0;
        do out[count++] = *(*at)++;
        while (count < 4 && *at < end && ((unsigned char)**at & 0xc0) == 0x80);
        return count;
    }
    *at += 2;
    if ((*at)[-1] == 'u' && (low = byoc_json_hex(*at, end)) >= 0) {
        *at += 4;
        if (low < 0xd800 || low > 0xdfff) {
            code = low;
        } else if (low < 0xdc00 && end - *at >= 6 && (*at)[0] == '\\' && (*at)[1] == 'u') {
            long second = byoc_json_hex(*at + 2, end);
            if (second >= 0xdc00 && second <= 0xdfff) {
                code = 0x10000 + ((low - 0xd800) << 10) + (second - 0xdc00);
                *at += 6;
            }
        }
    } else if ((name = strchr(names, (*at)[-1])) != NULL && *name != 0) {
        code = values[name - names];
    }
    if (code < 0x80) {
        out[0] = (char)code;
        return 1;
    }
    if (code < 0x800) {
        out[0] = (char)(0xc0 | code >> 6);
        out[1] = (char)(0x80 | (code & 0x3f));
        return 2;
    }
    if (code < 0x10000) {
        out[0] = (char)(0xe0 | code >> 12);
        out[1] = (char)(0x80 | (code >> 6 & 0x3f));
        out[2] = (char)(0x80 | (code & 0x3f));
        return 3;
    }
    out[0] = (char)(0xf0 | code >> 18);
    out[1] = (char)(0x80 | (code >> 12 & 0x3f));
    out[2] = (char)(0x80 | (code >> 6 & 0x3f));
    out[3] = (char)(0x80 | (code & 0x3f));
    return 4;
}

/* Copies a string, without its quotation marks and with its escapes replaced by what they stand for, truncated to the
 * buffer between characters; always terminated by a NUL. Returns the untruncated length, 0 if the value is not a
 * string. */
static inline size_t byoc_json_text(byoc_json value, char *text, size_t size) {
    const char *at = NULL, *past = NULL;
    size_t length = 0, copied = 0;
    int is_full = 0;
    if (value.at != NULL && value.at < value.end && *value.at == '"') past = byoc_json_past_text(value.at, value.end);
    if (past != NULL) {
        at = value.at + 1;
        while (at < past - 1) {
            char bytes[4];
            size_t count = byoc_json_character(&at, past - 1, bytes);
            length += count;
            is_full = is_full || length >= size;
            if (!is_full) {
                memcpy(text + copied, bytes, count);
                copied = length;
            }
        }
    }
    if (size > 0) text[copied] = 0;
    return length;
}

/* -- One pass ------------------------------------------------------------------------------------------------------ */

/* The functions above look up one value at a time, and scan the text again for the next. Those below read the text from
 * beginning to end, each value once, by moving a byoc_json through it: for `judge`, which may be called on thousands of
 * candidates. If they fail, the result is byoc_json_none(), at which every loop ends.
 *
 *     while (byoc_json_each(&type)) {
 *         if (byoc_json_field(&type, "dtype")) dtype = byoc_json_take(&type);
 *         else if (byoc_json_field(&type, "dims")) rank = byoc_json_take_ints(&type, dims, 8, -1);
 *         else byoc_json_pass(&type);
 *     }
 */

/* Moves to a position in the text; to byoc_json_none() if it is NULL. */
static inline void byoc_json_move(byoc_json *at, const char *place) {
    at->at = place;
    if (place == NULL) at->end = NULL;
}

/* Returns the value after the colon that follows a key; NULL if there is none. */
static inline const char *byoc_json_value(const char *at, const char *end) {
    at = byoc_json_space(at, end);
    return at < end && *at == ':' ? byoc_json_space(at + 1, end) : NULL;
}

/* Moves into a list or an object, to its first item or field, or past an item or field to the next. Returns 0 if there
 * is none; the position is then after the list or object. Each item or field must be taken or passed before the next
 * call. */
static inline int byoc_json_each(byoc_json *at) {
    const char *const end = at->end;
    const char *place = byoc_json_space(at->at, end);
    if (place < end && (*place == ',' || *place == '[' || *place == '{')) {
        place = byoc_json_space(place + 1, end);
        if (place < end && *place != ']' && *place != '}') {
            at->at = place;
            return 1;
        }
    }
    byoc_json_move(at, place < end && (*place == ']' || *place == '}') ? place + 1 : NULL);
    return 0;
}

/* Returns 1 and moves to the value if the current field has this key. (Inlined, so that a comparison with a string
 * literal takes an instruction or two.) */
BYOC_JSON_INLINE int byoc_json_field(byoc_json *at, const char *key) {
    const size_t length = strlen(key);
    if (!byoc_json_is(*at, key)) return 0;
    byoc_json_move(at, byoc_json_value(at->at + length + 2, at->end));
    return 1;
}

/* Moves past the current item, or past the current field and its value. */
static inline void byoc_json_pass(byoc_json *at) {
    const char *const end = at->end;
    const char *place = byoc_json_past(at->at, end);
    const char *colon = place == NULL ? NULL : byoc_json_space(place, end);
    if (colon != NULL && colon < end && *colon == ':') place = byoc_json_past(byoc_json_space(colon + 1, end), end);
    byoc_json_move(at, place);
}

/* Returns the current item or value, and moves past it. */
static inline byoc_json byoc_json_take(byoc_json *at) {
    const byoc_json value = *at;
    byoc_json_move(at, byoc_json_past(value.at, value.end));
    return value;
}

/* Does the same for an integer. */
static inline int64_t byoc_json_take_int(byoc_json *at, int64_t otherwise) {
    /* Fast path: sizes and strides are short and unsigned. */
    const char *place = at->at, *const past = at->end - at->at < 18 ? at->end : at->at + 18;
    int64_t number = 0;
    while (place < past && (unsigned char)(*place - '0') < 10) number = number * 10 + (*place++ - '0');
    if (place == at->at || place == past || (*place != ',' && *place != ']' && *place != '}')) {
        return byoc_json_int(byoc_json_take(at), otherwise);
    }
    at->at = place;
    return number;
}

/* Reads the integers of a list, up to `room` of them, and moves past it; items that are not integers become
 * `otherwise`. Returns the number of items of the list, which may exceed `room`. */
static inline size_t byoc_json_take_ints(byoc_json *at, int64_t *numbers, size_t room, int64_t otherwise) {
    size_t count = 0;
    while (byoc_json_each(at)) {
        const int64_t number = byoc_json_take_int(at, otherwise);
        if (count < room) numbers[count] = number;
        count++;
    }
    return count;
}

#endif

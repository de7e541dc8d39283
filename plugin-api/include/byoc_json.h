/* byoc_json.h: reads JSON texts, as they cross in byoc_plugin.h. Optional; another JSON library serves as well.
 *
 * A byoc_json is a place in a text: nothing is allocated, nothing is freed, and the text has to stay. A value that is not
 * there is byoc_json_none(), every function takes it, and gives its fallback for it: a chain of look-ups needs one check, at
 * its end. No function reads beyond the text, whatever stands in it.
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

/* How deep a text may nest. A graph with composites nests about ten deep. */
#define BYOC_JSON_DEPTH 128

static inline byoc_json byoc_json_none(void) {
    byoc_json none = {NULL, NULL};
    return none;
}

static inline const char *byoc_json_space(const char *at, const char *end) {
    /* Hardly ever is there any. */
    while (at < end && (unsigned char)*at <= ' ' && (*at == ' ' || *at == '\n' || *at == '\t' || *at == '\r')) at++;
    return at;
}

/* Which of eight letters are this one: the lowest bit that is set, if any, is in the first that is. (Above it, a letter whose
 * neighbour is meant may be marked too.) */
static inline uint64_t byoc_json_marks(uint64_t letters, unsigned char letter) {
    const uint64_t ones = 0x0101010101010101u;
    const uint64_t differ = letters ^ (ones * letter);
    return (differ - ones) & ~differ & (ones << 7);
}

/* Past the text that begins with a quotation mark at `at`; NULL where it does not end. */
static inline const char *byoc_json_past_text(const char *at, const char *end) {
    at++;
    while (at < end) {
#if defined(__GNUC__) && defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
        /* Eight letters at a time: most texts are names. */
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
        at += *at == '\\' ? 2 : 1; /* what is escaped ends nothing */
    }
    return NULL;
}

/* Past a number, true, false or null; NULL where there is none. */
static inline const char *byoc_json_past_word(const char *at, const char *end) {
    const char *start = at;
    while (at < end && ((*at >= '0' && *at <= '9') || (*at >= 'a' && *at <= 'z') || *at == '-' || *at == '+' || *at == '.' ||
                        *at == 'E')) {
        at++;
    }
    return at == start ? NULL : at;
}

/* Past the value that begins at `at`; NULL where it does not end. Only brackets and quotation marks count here: whether
 * commas and colons are where they should be was byoc_json_parse's business. */
static inline const char *byoc_json_past(const char *at, const char *end) {
    size_t depth = 0;
    if (at >= end) return NULL;
    if (*at == '"') return byoc_json_past_text(at, end);
    if (*at != '{' && *at != '[') return byoc_json_past_word(at, end);
    while (at < end) {
        const char letter = *at++;
        if (letter < '[') { /* most of a list of numbers */
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

/* Past the value that begins at `at`, every letter of which is looked at; NULL where it is no JSON, does not end, or nests
 * too deep. Not recursive. */
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

/* The value that a text holds; byoc_json_none() where it is cut short, or no JSON. For a text that may be anything: a blob
 * that was read from a file. */
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

/* The value that a text of the host's holds, which ends with a NUL and is JSON: nothing is checked, which is a third of the
 * work where there are thousands of candidates. */
static inline byoc_json byoc_json_of(const char *text) {
    byoc_json value;
    value.at = text;
    value.end = text + strlen(text);
    return value;
}

/* Whether the value is there. */
static inline int byoc_json_there(byoc_json value) { return value.at != NULL; }

/* The first item of a list. */
static inline byoc_json byoc_json_first(byoc_json list) {
    if (list.at == NULL || list.at >= list.end || *list.at != '[') return byoc_json_none();
    list.at = byoc_json_space(list.at + 1, list.end);
    if (list.at >= list.end || *list.at == ']') return byoc_json_none();
    return list;
}

/* The item behind the one that ends at `at`. */
static inline byoc_json byoc_json_behind(const char *at, const char *end) {
    byoc_json item;
    at = byoc_json_space(at, end);
    if (at >= end || *at != ',') return byoc_json_none();
    item.at = byoc_json_space(at + 1, end);
    item.end = end;
    return item.at < end ? item : byoc_json_none();
}

/* The item after this one in its list. */
static inline byoc_json byoc_json_next(byoc_json item) {
    const char *at;
    if (item.at == NULL) return byoc_json_none();
    at = byoc_json_past(item.at, item.end);
    return at == NULL ? byoc_json_none() : byoc_json_behind(at, item.end);
}

/* Item `index` of a list. */
static inline byoc_json byoc_json_at(byoc_json list, size_t index) {
    byoc_json item = byoc_json_first(list);
    while (index-- > 0 && item.at != NULL) item = byoc_json_next(item);
    return item;
}

/* The number of items of a list. */
static inline size_t byoc_json_count(byoc_json list) {
    size_t count = 0;
    byoc_json item;
    for (item = byoc_json_first(list); byoc_json_there(item); item = byoc_json_next(item)) count++;
    return count;
}

/* Whether a value is a text, and that one. (Texts with escapes equal nothing here: no name in a graph has one.) */
BYOC_JSON_INLINE int byoc_json_is(byoc_json value, const char *text) {
    size_t length = strlen(text);
    return value.at != NULL && (size_t)(value.end - value.at) >= length + 2 && *value.at == '"' &&
           memcmp(value.at + 1, text, length) == 0 && value.at[length + 1] == '"';
}

/* The field of an object. */
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

/* Whether a text of this length is that key. */
static inline int byoc_json_same(const char *text, size_t length, const char *key) {
    size_t i = 0;
    while (i < length && text[i] == key[i]) i++; /* a key ends with a NUL, which is in no JSON text */
    return i == length && key[i] == 0;
}

/* Several fields of an object in one pass over it: values[i] becomes the field keys[i], byoc_json_none() where there is none.
 * Gives where the object ends, or where nothing more was wanted of it if `whole` is 0; NULL where it is no object.
 * Cheapest where the keys are asked for in the order of byoc_plugin.h's JSON. */
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

/* Several fields of an object in one pass over it: values[i] becomes the field keys[i], byoc_json_none() where there is none. */
static inline void byoc_json_fields(byoc_json object, const char *const *keys, byoc_json *values, size_t count) {
    byoc_json_scan(object, keys, values, count, 0);
}

/* The same for an object in a list, and gives the item after it: a list of objects is read in one pass. */
static inline byoc_json byoc_json_next_fields(byoc_json object, const char *const *keys, byoc_json *values, size_t count) {
    const char *past = byoc_json_scan(object, keys, values, count, 1);
    return past == NULL ? byoc_json_none() : byoc_json_behind(past, object.end);
}

/* Copies a number's letters out of the text, which need not end with a NUL; 0 where there is no number. */
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

/* The number, as an integer. */
static inline int64_t byoc_json_int(byoc_json value, int64_t otherwise) {
    char digits[64];
    const char *at = value.at;
    int64_t number = 0;
    /* Sizes and strides are short and have no sign: no need of strtoll. */
    while (at != NULL && at < value.end && *at >= '0' && *at <= '9' && at - value.at < 18) number = number * 10 + (*at++ - '0');
    if (at != NULL && at > value.at && at < value.end && (*at == ',' || *at == ']' || *at == '}')) return number;
    return byoc_json_number(value, digits, sizeof digits) ? (int64_t)strtoll(digits, NULL, 10) : otherwise;
}

/* The integers of a list, `room` of them at most, in one pass over it; what is no integer is `otherwise`. Gives how many items
 * the list has, which may be more than there is room for. */
static inline size_t byoc_json_ints(byoc_json list, int64_t *numbers, size_t room, int64_t otherwise) {
    size_t count = 0;
    byoc_json item = byoc_json_first(list);
    while (byoc_json_there(item)) {
        /* Dimensions and strides are short and have no sign. */
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

/* The number. (The three floats that JSON has no number for cross as {"float": "nan"}, "inf" and "-inf".) */
static inline double byoc_json_float(byoc_json value, double otherwise) {
    char digits[64];
    byoc_json special = byoc_json_get(value, "float");
    if (byoc_json_is(special, "nan")) return strtod("nan", NULL);
    if (byoc_json_is(special, "inf")) return strtod("inf", NULL);
    if (byoc_json_is(special, "-inf")) return strtod("-inf", NULL);
    return byoc_json_number(value, digits, sizeof digits) ? strtod(digits, NULL) : otherwise;
}

/* The flag. */
static inline int byoc_json_bool(byoc_json value, int otherwise) {
    if (value.at == NULL) return otherwise;
    if (value.end - value.at >= 4 && memcmp(value.at, "true", 4) == 0) return 1;
    if (value.end - value.at >= 5 && memcmp(value.at, "false", 5) == 0) return 0;
    return otherwise;
}

/* Copies a text, without its quotation marks and with its escapes as they stand, as much of it as there is room for; always
 * with a NUL. Gives its whole length, 0 where the value is no text. */
static inline size_t byoc_json_text(byoc_json value, char *text, size_t size) {
    const char *past;
    size_t length = 0, copied;
    if (value.at != NULL && value.at < value.end && *value.at == '"') {
        past = byoc_json_past_text(value.at, value.end);
        if (past != NULL) length = (size_t)(past - value.at) - 2;
    }
    if (size > 0) {
        copied = length < size - 1 ? length : size - 1;
        if (copied > 0) memcpy(text, value.at + 1, copied);
        text[copied] = 0;
    }
    return length;
}

/* -- One pass ------------------------------------------------------------------------------------------------------ */

/* The functions above look for one thing at a time, and pass over the same letters again for the next. Those below read a text
 * from its beginning to its end, each value once, by moving a byoc_json through it: that is for `judge`, which may be asked
 * about thousands of candidates. What they cannot read, they leave at byoc_json_none(), where every loop ends.
 *
 *     while (byoc_json_each(&type)) {
 *         if (byoc_json_field(&type, "dtype")) dtype = byoc_json_take(&type);
 *         else if (byoc_json_field(&type, "dims")) rank = byoc_json_take_ints(&type, dims, 8, -1);
 *         else byoc_json_pass(&type);
 *     }
 */

/* Moves to a place in the text; NULL where there is none. */
static inline void byoc_json_move(byoc_json *at, const char *place) {
    at->at = place;
    if (place == NULL) at->end = NULL;
}

/* The value behind the colon that follows a key; NULL where there is none. */
static inline const char *byoc_json_value(const char *at, const char *end) {
    at = byoc_json_space(at, end);
    return at < end && *at == ':' ? byoc_json_space(at + 1, end) : NULL;
}

/* Moves into a list or an object, to its first item or field; and, from behind an item or field, to the next. 0 where there is
 * none, and then it is behind the list or object. What it has moved to has to be taken or passed before the next call. */
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

/* Whether the field that it has moved to has this key; if so, moves to the value. (In line, so that a key that is written in the
 * program is compared in an instruction or two.) */
BYOC_JSON_INLINE int byoc_json_field(byoc_json *at, const char *key) {
    const size_t length = strlen(key);
    if (!byoc_json_is(*at, key)) return 0;
    byoc_json_move(at, byoc_json_value(at->at + length + 2, at->end));
    return 1;
}

/* Moves past an item, or past a field, its value included. */
static inline void byoc_json_pass(byoc_json *at) {
    const char *const end = at->end;
    const char *place = byoc_json_past(at->at, end);
    const char *colon = place == NULL ? NULL : byoc_json_space(place, end);
    if (colon != NULL && colon < end && *colon == ':') place = byoc_json_past(byoc_json_space(colon + 1, end), end);
    byoc_json_move(at, place);
}

/* The item or the field's value that it has moved to, and moves past it. */
static inline byoc_json byoc_json_take(byoc_json *at) {
    const byoc_json value = *at;
    byoc_json_move(at, byoc_json_past(value.at, value.end));
    return value;
}

/* The same for an integer. */
static inline int64_t byoc_json_take_int(byoc_json *at, int64_t otherwise) {
    /* Sizes and strides are short and have no sign. */
    const char *place = at->at, *const past = at->end - at->at < 18 ? at->end : at->at + 18;
    int64_t number = 0;
    while (place < past && (unsigned char)(*place - '0') < 10) number = number * 10 + (*place++ - '0');
    if (place == at->at || place == past || (*place != ',' && *place != ']' && *place != '}')) {
        return byoc_json_int(byoc_json_take(at), otherwise);
    }
    at->at = place;
    return number;
}

/* The integers of a list, `room` of them at most, and moves past it; what is no integer is `otherwise`. Gives how many items
 * the list has, which may be more than there is room for. */
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

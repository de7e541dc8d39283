"""Comparison of the protocol's fields in the server's file with the message descriptors of a client."""

import pathlib
import re

PROTO = pathlib.Path(__file__).resolve().parents[2] / "inference.proto"


def fields_of_file(kserve=False):
    """Returns the number and the type of each field, by message and field name, of Triton's or of KServe's messages."""
    messages, path = {}, []
    for line in PROTO.read_text().splitlines():
        code, _, comment = line.partition("//")
        code, is_kserve = code.strip(), comment.startswith(" KServe")
        if match := re.match(r"(\w+) (\w+) \{(\})?", code):
            path.append(match[2] if match[1] in ("message", "enum") else None)
            if match[1] == "message" and "not read" not in comment:
                messages[".".join(path)] = {}
            if match[3]:
                path.pop()
        elif code == "}":
            path.pop()
        elif path and (match := re.match(r"(.+) (\w+) = (\d+);", code)) and (kserve or not is_kserve):
            messages[".".join(filter(None, path))][match[2]] = (int(match[3]), match[1])
    return messages


def fields_of_message(message):
    """Returns the number and the type of each field of a message descriptor."""
    kinds = {v: k[5:].lower() for k, v in vars(type(message.fields[0])).items() if k.startswith("TYPE_")} if message.fields else {}

    def base(field):
        named = field.message_type or field.enum_type
        return named.full_name.removeprefix("inference.") if named else kinds[field.type]

    found = {}
    for field in message.fields:
        is_repeated = field.is_repeated if hasattr(field, "is_repeated") else field.label == field.LABEL_REPEATED
        if field.message_type and field.message_type.GetOptions().map_entry:
            entry = field.message_type.fields_by_name
            kind = f"map<{base(entry['key'])}, {base(entry['value'])}>"
        else:
            kind = ("repeated " if is_repeated else "") + base(field)
        found[field.name] = (field.number, kind)
    return found


def with_nested(message):
    yield message
    for nested in message.nested_types:
        if not nested.GetOptions().map_entry:
            yield from with_nested(nested)


def messages_of(*files):
    """Returns the fields of all messages in file descriptors."""
    found = {}
    for file in files:
        for top in file.message_types_by_name.values():
            for message in with_nested(top):
                found[message.full_name.removeprefix("inference.")] = fields_of_message(message)
    return found

//! Arguments of C plugin entries: NUL-terminated texts, constant handles, candidates.
//!
//! `judge` may be called on thousands of candidates. All texts of a batch are in one buffer, and all of its constants
//! in one list, so that a candidate costs little more than writing its JSON. The buffer is reused for the next batch,
//! so that it stays in the cache.

use super::abi;
use super::handles::CConstant;
use super::prefetch::prefetch;
use crate::backend::{Candidate, CandidateKind};
use crate::constant::Constant;
use crate::graph::AttrValue;
use crate::graph_json::write_attrs;
use std::ffi::{CString, c_char};
use std::sync::Arc;

/// Converts a string to a C string, with NUL characters replaced by U+FFFD.
pub fn c_text(text: &str) -> CString {
    CString::new(text).unwrap_or_else(|_| CString::new(text.replace('\0', "\u{fffd}")).unwrap_or_default())
}

/// Constants as passed to a plugin: the handles, and the list of pointers to them.
#[derive(Default)]
pub struct Handles {
    handles: Vec<Arc<CConstant>>,
    pub pointers: Vec<*const CConstant>,
}

impl Handles {
    pub fn new(constants: &[Constant]) -> Handles {
        let mut handles = Handles::default();
        constants.iter().for_each(|constant| handles.push(constant));
        handles
    }

    fn clear(&mut self) {
        self.handles.clear();
        self.pointers.clear();
    }

    fn push(&mut self, constant: &Constant) {
        let handle = CConstant::new(constant);
        self.pointers.push(Arc::as_ptr(&handle));
        self.handles.push(handle);
    }
}

/// Concatenated strings, each terminated by a NUL. A string is identified by its offset, because the buffer moves when
/// it grows.
#[derive(Default)]
struct Texts {
    bytes: Vec<u8>,
}

impl Texts {
    /// Appends a NUL-free string, such as JSON.
    fn write(&mut self, write: impl FnOnce(&mut Vec<u8>)) -> usize {
        let start = self.bytes.len();
        write(&mut self.bytes);
        self.bytes.push(0);
        start
    }

    /// Appends a string, with NUL characters replaced as in [`c_text`].
    fn push(&mut self, text: &str) -> usize {
        self.write(|bytes| match text.contains('\0') {
            false => bytes.extend_from_slice(text.as_bytes()),
            true => bytes.extend_from_slice(text.replace('\0', "\u{fffd}").as_bytes()),
        })
    }

    fn pointer(&self, start: usize) -> *const c_char {
        self.bytes[start..].as_ptr().cast()
    }
}

/// Candidates as passed to a plugin, and the data that they point to.
#[derive(Default)]
pub struct Batch {
    texts: Texts,
    handles: Handles,
    candidates: Vec<abi::Candidate>,
}

// SAFETY: the pointers refer to data of the batch itself, and to constants, which any thread may read.
unsafe impl Send for Batch {}

impl Batch {
    /// Number of candidates in a batch: enough to amortize a call, few enough that their texts stay in the cache.
    pub const SIZE: usize = 128;

    /// Number of candidates that are prefetched while an equal number is written.
    const PREFETCH_GROUP: usize = 8;

    /// Replaces the contents of the batch with `candidates`.
    pub fn fill(&mut self, candidates: &[Candidate]) {
        let Batch { texts, handles, .. } = self;
        texts.bytes.clear();
        handles.clear();
        let mut starts: Vec<[usize; 4]> = Vec::with_capacity(candidates.len());
        let mut groups = candidates.chunks(Batch::PREFETCH_GROUP);
        groups.next().into_iter().for_each(prefetch);
        for group in candidates.chunks(Batch::PREFETCH_GROUP) {
            groups.next().into_iter().for_each(prefetch);
            for candidate in group {
                starts.push([
                    texts.push(&candidate.name),
                    texts.push(&candidate.check),
                    texts.write(|out| candidate.graph.write_json(out)),
                    texts.write(|out| write_candidate_attrs(candidate, out)),
                ]);
                candidate.constants.iter().for_each(|constant| handles.push(constant));
            }
        }
        let mut constants = &handles.pointers[..];
        let arguments = candidates.iter().zip(starts).map(|(candidate, [name, check, graph, attrs])| {
            let candidate_constants;
            (candidate_constants, constants) = constants.split_at(candidate.constants.len());
            abi::Candidate {
                struct_size: size_of::<abi::Candidate>(),
                kind: match candidate.kind {
                    CandidateKind::Pattern => 0,
                    CandidateKind::Operator => 1,
                    CandidateKind::Region => 2,
                },
                outside_users: candidate.outside_users,
                name: texts.pointer(name),
                check: texts.pointer(check),
                graph: texts.pointer(graph),
                constants: candidate_constants.as_ptr(),
                constant_count: candidate_constants.len(),
                attrs: texts.pointer(attrs),
            }
        });
        self.candidates.clear();
        self.candidates.extend(arguments);
    }

    /// Returns the list that is passed to `judge`.
    pub fn pointers(&self) -> Vec<*const abi::Candidate> {
        self.candidates.iter().map(std::ptr::from_ref).collect()
    }
}
/// Appends the attributes of a candidate as a JSON object, which has the user's choices in two forms: as a text under
/// `options`, and as `backend_options` and `device`, where `compile` has them.
fn write_candidate_attrs(candidate: &Candidate, out: &mut Vec<u8>) {
    write_attrs(&candidate.attrs, out);
    let options = candidate.attrs.iter().find(|attr| attr.key == "options").map(|attr| &attr.value);
    if let Some(AttrValue::Str(text)) = options
        && let Some(fields) = text.as_str().strip_prefix('{').filter(|fields| *fields != "}")
        && out.pop_if(|last| *last == b'}').is_some()
    {
        out.push(b',');
        out.extend_from_slice(fields.as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{Attr, Graph};
    use serde_json::{Value, json};

    #[test]
    fn choices_arrive_as_an_object_and_as_a_text() {
        let read = |text: &str| -> Value {
            let mut candidate = Candidate::new(CandidateKind::Operator, "abs", Graph::new("abs"));
            candidate.attrs.push(Attr::new("options", text));
            let mut out = Vec::new();
            write_candidate_attrs(&candidate, &mut out);
            serde_json::from_slice(&out).unwrap()
        };
        let choices = r#"{"backend_options":{"half":"a\"}b"},"device":"1"}"#;
        let expected = json!({"options": choices, "backend_options": {"half": "a\"}b"}, "device": "1"});
        assert_eq!(read(choices), expected);
        assert_eq!(read("{}"), json!({"options": "{}"}));
        let mut out = Vec::new();
        write_candidate_attrs(&Candidate::new(CandidateKind::Operator, "abs", Graph::new("abs")), &mut out);
        assert_eq!(out, b"{}");
    }
}

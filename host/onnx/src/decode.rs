//! Decoding of messages within the memory limit and the time limit.

use byoc_files::footprint::{self, Decodable, MAX_EXPANSION};
use byoc_ir::cancel;
use byoc_ir::diag::Diagnostic;
use byoc_ir::tensor::memory::{self, Charge};
use bytes::{Buf, Bytes};
use prost::Message;

/// Decodes a message, whose memory is charged until the charge is dropped. `error` creates the diagnostic for malformed
/// bytes.
///
/// # Errors
/// If the bytes are malformed, the structures are out of proportion to the bytes or exceed the memory limit, or the
/// work is cancelled.
pub fn decode<M: Message + Default + Decodable>(
    bytes: Bytes,
    error: impl Fn(String) -> Diagnostic,
) -> Result<(M, Charge), Diagnostic> {
    let progress = || format!("a file of {} bytes was being decoded", bytes.len());
    let Some(size) = footprint::protobuf::<M>(&bytes, usize::MAX) else {
        cancel::check(progress)?;
        return Err(error("more fields than can be counted".into()));
    };
    let limit = footprint::limit(bytes.len());
    if size > limit {
        let (size, limit) = (memory::Bytes(size), memory::Bytes(limit));
        return Err(error(format!(
            "structures that take {size} in memory, where at most {limit} are permitted, {MAX_EXPANSION} times the size of the file"
        )));
    }
    // The importer keeps the nodes a second time while it arranges them.
    let charge = Charge::new(size.saturating_mul(2)).map_err(|failure| {
        Diagnostic::from(failure).note(format!("the structures of the file take {} in memory", memory::Bytes(size)))
    })?;
    let decoded = M::decode(Polling { bytes: bytes.clone(), polls: 0 });
    // A message that ended early may still be well-formed.
    cancel::check(progress)?;
    let message = decoded.map_err(|fault| error(format!("malformed protobuf data: {fault}")))?;
    Ok((message, charge))
}

/// Encoded message that ends early when the work is cancelled.
struct Polling {
    bytes: Bytes,
    polls: u32,
}

impl Buf for Polling {
    fn remaining(&self) -> usize {
        self.bytes.len()
    }

    fn chunk(&self) -> &[u8] {
        &self.bytes
    }

    fn advance(&mut self, count: usize) {
        const POLL_INTERVAL: u32 = 1 << 16;
        self.polls += 1;
        if self.polls == POLL_INTERVAL {
            self.polls = 0;
            if cancel::is_requested() {
                self.bytes.clear();
                return;
            }
        }
        // A decoder advances over bytes that it has seen, which are gone after a cancellation.
        self.bytes.advance(count.min(self.bytes.len()));
    }

    fn copy_to_bytes(&mut self, length: usize) -> Bytes {
        self.bytes.split_to(length.min(self.bytes.len()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::ModelProto;
    use byoc_ir::cancel::Cancel;
    use byoc_ir::diag::codes;

    fn decode_model(bytes: Vec<u8>) -> Result<ModelProto, Diagnostic> {
        let error = |reason| Diagnostic::error(codes::frontends::BROKEN_MODEL, reason);
        decode(bytes.into(), error).map(|(model, _)| model)
    }

    fn field(number: u32, content: &[u8]) -> Vec<u8> {
        let mut message = Vec::new();
        prost::encoding::encode_varint(u64::from(number) << 3 | 2, &mut message);
        prost::encoding::encode_varint(content.len() as u64, &mut message);
        message.extend_from_slice(content);
        message
    }

    /// Wraps the contents of a field of the graph, of its first node, of the first attribute of that node, or of the
    /// first initializer.
    fn wrap(place: &str, content: &[u8]) -> Vec<u8> {
        match place {
            "model" => content.to_vec(),
            "graph" => field(7, content),
            "node" => field(7, &field(1, content)),
            "attribute" => field(7, &field(1, &field(5, content))),
            "initializer" => field(7, &field(5, content)),
            "dims" => field(7, &field(11, &field(2, &field(1, &field(2, content))))),
            "function" => field(25, content),
            _ => panic!("expected a place, found {place}"),
        }
    }

    #[test]
    fn many_empty_messages_are_rejected_before_they_are_decoded() {
        const COUNT: usize = 2 << 20;
        for (place, number) in [
            ("graph", 1),
            ("graph", 5),
            ("graph", 15),
            ("node", 5),
            ("attribute", 10),
            ("attribute", 11),
            ("function", 7),
            ("function", 11),
        ] {
            let error = decode_model(wrap(place, &field(number, b"").repeat(COUNT))).map(drop).unwrap_err();
            assert!(error.message.contains("64 times the size of the file"), "{place} {number}: {error}");
        }
    }

    #[test]
    fn structures_are_charged_before_they_are_decoded() {
        for (place, number) in [("node", 1), ("dims", 1), ("attribute", 9), ("initializer", 13), ("model", 14)] {
            let bytes = wrap(place, &field(number, b"").repeat(1000));
            let before = memory::used();
            let error = |reason| Diagnostic::error(codes::frontends::BROKEN_MODEL, reason);
            let (_model, charge) = decode::<ModelProto>(bytes.into(), error).unwrap();
            assert!(memory::used() >= before + 2 * 24 * 1000, "{place} {number}");
            drop(charge);
        }
    }

    #[test]
    fn decoding_ends_when_it_is_cancelled() {
        let cancel = Cancel::default();
        cancel.set(true);
        let bytes = wrap("node", &field(1, b"x").repeat(1 << 17));
        let error = cancel.within(|| decode_model(bytes.clone())).map(drop).unwrap_err();
        assert_eq!(error.code, codes::runtime::CANCELLED);
        assert!(decode_model(bytes).is_ok());

        // Also without the scan of the fields.
        let bytes = Bytes::from(wrap("node", &field(1, b"x").repeat(1 << 17)));
        let model = cancel.within(|| ModelProto::decode(Polling { bytes, polls: 0 })).unwrap();
        assert!(model.graph.unwrap().node[0].input.len() < 1 << 17);
    }
}

//! HTTP bodies: compression in both directions, aligned binary data, zero-copy access to parts. Bodies are charged to
//! the memory limit: a request until its response is computed, a response until the client has read it.

use crate::app::{App, BodyBytes, run_json_task, too_large_error};
use crate::error::{Result, ServeError};
use crate::infer_json::HttpResponse;
use crate::memory::{self, ChargedBytes};
use axum::body::Body;
use axum::response::Response;
use byoc_ir::tensor::memory::Charge;
use bytes::{Bytes, BytesMut};
use flate2::Compression;
use flate2::read::{GzDecoder, ZlibDecoder};
use flate2::write::{GzEncoder, ZlibEncoder};
use http_body_util::BodyExt;
use hyper::HeaderMap;
use hyper::body::Frame;
use hyper::header::{ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE};
use std::collections::VecDeque;
use std::convert::Infallible;
use std::io::{Read, Write};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

/// Maximum size in bytes of a response whose parts are concatenated before sending.
const MAX_JOINED: usize = 64 << 10;

/// Compression format of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coding {
    Gzip,
    Deflate,
}

impl Coding {
    fn name(self) -> &'static str {
        match self {
            Coding::Gzip => "gzip",
            Coding::Deflate => "deflate",
        }
    }
}

/// Returns the compression format for a response. A response is compressed only if the client lists exactly one format,
/// because compression takes longer than sending, and some clients always list every format they support.
pub fn accepted_coding(headers: &HeaderMap) -> Option<Coding> {
    match headers.get(ACCEPT_ENCODING)?.to_str().ok()?.trim() {
        "gzip" => Some(Coding::Gzip),
        "deflate" => Some(Coding::Deflate),
        _ => None,
    }
}

/// Reads and decompresses a body. The binary data after `header` bytes of JSON is aligned to 64 bytes in memory, so
/// that tensors need no copy.
///
/// # Errors
/// If the body is too large, incomplete, or not compressed as its header states, or the memory limit is exhausted.
pub async fn read_body(
    app: &Arc<App>,
    headers: &HeaderMap,
    mut body: Body,
    max_size: usize,
    header: usize,
) -> Result<BodyBytes> {
    const ALIGN: usize = 64;
    /// Maximum number of bytes reserved before the body arrives.
    const MAX_EXPECTED: usize = 4 << 20;
    let coding = match headers.get(CONTENT_ENCODING).map(|value| value.to_str().unwrap_or("?").trim()) {
        None | Some("" | "identity") => None,
        Some("gzip") => Some(Coding::Gzip),
        Some("deflate") => Some(Coding::Deflate),
        Some(other) => {
            let message = format!("Content-Encoding: expected gzip or deflate, found {other:?}");
            return Err(ServeError::not_served(message));
        }
    };
    let length = headers.get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<usize>().ok());
    if let Some(length) = length.filter(|length| *length > max_size) {
        return Err(too_large_error(max_size, length));
    }
    let mut buffer = BytesMut::with_capacity(length.unwrap_or(0).min(MAX_EXPECTED) + ALIGN);
    let data = (buffer.as_ptr() as usize).wrapping_add(header % ALIGN);
    let pad = (ALIGN - data % ALIGN) % ALIGN;
    buffer.resize(pad, 0);
    let mut charge = Charge::default();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| ServeError::bad_request(format!("cannot read the request body: {error}")))?;
        if let Ok(bytes) = frame.into_data() {
            let size = buffer.len() - pad;
            if size + bytes.len() > max_size {
                return Err(too_large_error(max_size, size + bytes.len()));
            }
            app.charge(&mut charge, size, bytes.len())?;
            buffer.extend_from_slice(&bytes);
        }
    }
    let bytes = buffer.freeze().slice(pad..);
    let Some(coding) = coding else { return Ok(BodyBytes { bytes, charge }) };
    let app = app.clone();
    run_json_task(usize::MAX, move || {
        let _compressed = charge;
        decompress(&app, &bytes, coding, max_size)
    })
    .await
}

/// Reads and drops a body of at most `max_size` bytes, so that the client reads the response instead of a reset.
pub async fn drain(mut body: Body, max_size: usize) {
    let mut size = 0;
    while let Some(Ok(frame)) = body.frame().await {
        size += frame.data_ref().map_or(0, Bytes::len);
        if size > max_size {
            break;
        }
    }
}

fn decompress(app: &App, bytes: &[u8], coding: Coding, max_size: usize) -> Result<BodyBytes> {
    let mut reader: Box<dyn Read> = match coding {
        Coding::Gzip => Box::new(GzDecoder::new(bytes)),
        Coding::Deflate => Box::new(ZlibDecoder::new(bytes)),
    };
    let (mut decompressed, mut charge, mut chunk) = (Vec::new(), Charge::default(), vec![0; 64 << 10]);
    loop {
        let count = reader.read(&mut chunk).map_err(|error| {
            ServeError::bad_request(format!("cannot decompress the {} body: {error}", coding.name()))
        })?;
        if count == 0 {
            return Ok(BodyBytes { bytes: decompressed.into(), charge });
        }
        if decompressed.len() + count > max_size {
            return Err(too_large_error(max_size, decompressed.len() + count));
        }
        app.charge(&mut charge, decompressed.len(), count)?;
        decompressed.extend_from_slice(&chunk[..count]);
    }
}

/// Body that consists of several parts.
struct Chunks {
    parts: VecDeque<Bytes>,
    remaining_size: u64,
}

impl http_body::Body for Chunks {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<std::result::Result<Frame<Bytes>, Infallible>>> {
        let part = self.parts.pop_front();
        self.remaining_size -= part.as_ref().map_or(0, |part| part.len() as u64);
        Poll::Ready(part.map(|part| Ok(Frame::data(part))))
    }

    fn is_end_stream(&self) -> bool {
        self.parts.is_empty()
    }

    fn size_hint(&self) -> http_body::SizeHint {
        http_body::SizeHint::with_exact(self.remaining_size)
    }
}

/// Converts an inference response to an HTTP response.
///
/// # Errors
/// If the response cannot be compressed.
pub async fn infer_response(response: HttpResponse, compression: Option<Coding>) -> Result<Response> {
    let HttpResponse { header, binary, mut charge } = response;
    let json = header.len();
    let is_binary = !binary.is_empty();
    let size = json + binary.iter().map(Bytes::len).sum::<usize>();
    let body = match compression {
        Some(coding) => {
            let compress_parts = move || {
                memory::grow(&mut charge, size)?;
                let mut parts = vec![Bytes::from(header)];
                parts.extend(binary);
                let compressed = compress(&parts, coding)?;
                memory::resize(&mut charge, compressed.len())?;
                Ok(ChargedBytes::of(compressed, charge))
            };
            Body::from(run_json_task(size, compress_parts).await?)
        }
        None if size <= MAX_JOINED => {
            let mut message = header;
            binary.iter().for_each(|bytes| message.extend_from_slice(bytes));
            memory::grow_for_response(&mut charge, size - json)?;
            Body::from(ChargedBytes::of(message, charge))
        }
        None => {
            let mut parts = VecDeque::from([ChargedBytes::of(header, charge)]);
            parts.extend(binary.into_iter().filter(|bytes| !bytes.is_empty()));
            Body::new(Chunks { parts, remaining_size: size as u64 })
        }
    };
    let mut builder = Response::builder();
    if is_binary {
        builder =
            builder.header("Inference-Header-Content-Length", json).header(CONTENT_TYPE, "application/octet-stream");
    } else {
        builder = builder.header(CONTENT_TYPE, "application/json");
    }
    if let Some(coding) = compression {
        builder = builder.header(CONTENT_ENCODING, coding.name());
    }
    Ok(builder.body(body).unwrap_or_default())
}

fn compress(parts: &[Bytes], coding: Coding) -> Result<Vec<u8>> {
    let compress_error =
        |error: std::io::Error| ServeError::overloaded(format!("cannot compress the response: {error}"));
    match coding {
        Coding::Gzip => {
            let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
            parts.iter().try_for_each(|part| encoder.write_all(part)).map_err(compress_error)?;
            encoder.finish().map_err(compress_error)
        }
        Coding::Deflate => {
            let mut encoder = ZlibEncoder::new(Vec::new(), Compression::fast());
            parts.iter().try_for_each(|part| encoder.write_all(part)).map_err(compress_error)?;
            encoder.finish().map_err(compress_error)
        }
    }
}

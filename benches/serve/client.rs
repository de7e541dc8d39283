//! Measurement clients: HTTP/1.1 over a blocking socket, and gRPC over HTTP/2, each with one persistent connection.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};

/// HTTP/1.1 connection.
pub struct Http {
    stream: TcpStream,
    buffer: Vec<u8>,
    filled: usize,
}

/// Response status, and the ends of the head and of the body in the buffer.
#[derive(Clone, Copy, Debug)]
pub struct Reply {
    pub status: u16,
    head: usize,
    end: usize,
}

fn invalid_data(message: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, message)
}

impl Http {
    /// Connects to a server.
    pub fn connect(address: SocketAddr) -> io::Result<Http> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(Duration::from_secs(60)))?;
        Ok(Http { stream, buffer: vec![0; 1 << 16], filled: 0 })
    }

    /// Sends a request and receives the response.
    pub fn exchange(&mut self, request: &[u8]) -> io::Result<Reply> {
        self.stream.write_all(request)?;
        self.filled = 0;
        let head = loop {
            self.fill()?;
            if let Some(header_len) = self.buffer[..self.filled].windows(4).position(|window| window == b"\r\n\r\n") {
                break header_len + 4;
            }
        };
        let text = std::str::from_utf8(&self.buffer[..head])
            .map_err(|_| invalid_data("expected a response head in UTF-8, found other bytes"))?;
        let status = text
            .split(' ')
            .nth(1)
            .and_then(|word| word.parse().ok())
            .ok_or_else(|| invalid_data("expected an HTTP status, found none"))?;
        let length: usize = header(text, "content-length").and_then(|value| value.parse().ok()).unwrap_or(0);
        let end = head + length;
        if self.buffer.len() < end {
            self.buffer.resize(end, 0);
        }
        while self.filled < end {
            self.fill()?;
        }
        Ok(Reply { status, head, end })
    }

    fn fill(&mut self) -> io::Result<()> {
        if self.filled == self.buffer.len() {
            self.buffer.resize(self.filled * 2, 0);
        }
        match self.stream.read(&mut self.buffer[self.filled..])? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            count => {
                self.filled += count;
                Ok(())
            }
        }
    }

    /// Returns the body of the last response.
    pub fn body(&self, reply: Reply) -> &[u8] {
        &self.buffer[reply.head..reply.end]
    }

    /// Returns the binary tensor data that follows the JSON in the last response.
    pub fn data(&self, reply: Reply) -> &[u8] {
        let head = std::str::from_utf8(&self.buffer[..reply.head]).unwrap_or_default();
        let json = header(head, "inference-header-content-length").and_then(|value| value.parse().ok()).unwrap_or(0);
        &self.buffer[(reply.head + json).min(reply.end)..reply.end]
    }

    /// Sends a GET request and returns the status.
    pub fn get(&mut self, path: &str) -> io::Result<u16> {
        Ok(self.exchange(&request("GET", path, &[], b""))?.status)
    }
}

fn header<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    head.lines()
        .filter_map(|line| line.split_once(':'))
        .find(|(n, _)| n.eq_ignore_ascii_case(name))
        .map(|(_, v)| v.trim())
}

/// Returns the bytes of an HTTP/1.1 request.
pub fn request(method: &str, path: &str, headers: &[(&str, String)], body: &[u8]) -> Vec<u8> {
    let mut text = format!("{method} {path} HTTP/1.1\r\nHost: bench\r\nContent-Length: {}\r\n", body.len());
    for (name, value) in headers {
        text += &format!("{name}: {value}\r\n");
    }
    text += "\r\n";
    [text.as_bytes(), body].concat()
}

/// Returns an inference request with binary data.
pub fn binary_request(model: &str, input: &str, shape: &[i64], data: &[u8]) -> Vec<u8> {
    let json = binary_header(input, shape, data.len());
    let headers = [("Inference-Header-Content-Length", json.len().to_string())];
    request("POST", &format!("/v2/models/{model}/infer"), &headers, &[json.as_bytes(), data].concat())
}

/// Returns the JSON that precedes the binary data of an inference request.
pub fn binary_header(input: &str, shape: &[i64], size: usize) -> String {
    format!(
        "{{\"inputs\":[{{\"name\":\"{input}\",\"shape\":{shape:?},\"datatype\":\"FP32\",\"parameters\":{{\"binary_data_size\":{size}}}}}],\
         \"parameters\":{{\"binary_data_output\":true}}}}"
    )
}

/// gRPC connection.
pub struct Grpc {
    runtime: Runtime,
    sender: http2::SendRequest<Full<Bytes>>,
    address: SocketAddr,
}

/// gRPC method path of an inference.
pub const INFER: &str = "/inference.GRPCInferenceService/ModelInfer";

/// Serializes a message with the gRPC prefix: compression flag and length.
pub fn frame(message: &impl prost::Message) -> Bytes {
    let mut frame_bytes = BytesMut::new();
    frame_bytes.put_u8(0);
    frame_bytes.put_u32(message.encoded_len() as u32);
    frame_bytes.extend_from_slice(&message.encode_to_vec());
    frame_bytes.freeze()
}

impl Grpc {
    /// Connects to a server.
    pub fn connect(address: SocketAddr) -> crate::Result<Grpc> {
        let runtime = Builder::new_current_thread().enable_all().build().map_err(|e| e.to_string())?;
        let connection_result = runtime.block_on(async {
            let stream = tokio::net::TcpStream::connect(address).await?;
            stream.set_nodelay(true)?;
            let mut builder = http2::Builder::new(TokioExecutor::new());
            builder.initial_stream_window_size(4 << 20).initial_connection_window_size(8 << 20);
            let (sender, connection) = builder.handshake(TokioIo::new(stream)).await.map_err(io::Error::other)?;
            tokio::spawn(connection);
            io::Result::Ok(sender)
        });
        Ok(Grpc { runtime, sender: connection_result.map_err(|e| e.to_string())?, address })
    }

    /// Calls a method. An error contains the gRPC status and message.
    pub fn exchange(&mut self, path: &str, body: Bytes) -> crate::Result<Bytes> {
        let request = hyper::Request::post(format!("http://{}{path}", self.address))
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .body(Full::new(body))
            .map_err(|e| e.to_string())?;
        let response = self.sender.send_request(request);
        self.runtime.block_on(async {
            let response = response.await.map_err(|e| e.to_string())?;
            let (parts, body) = response.into_parts();
            let body = body.collect().await.map_err(|e| e.to_string())?;
            let trailers = body.trailers().unwrap_or(&parts.headers);
            let text =
                |name: &str| trailers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default().to_owned();
            if text("grpc-status") != "0" {
                let (status, message) = (text("grpc-status"), text("grpc-message"));
                return Err(format!("expected gRPC status 0, found {status}: {message}"));
            }
            let mut bytes = body.to_bytes();
            if bytes.len() < 5 {
                return Err("expected a gRPC message, found none".into());
            }
            bytes.advance(5);
            Ok(bytes)
        })
    }
}

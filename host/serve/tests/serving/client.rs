//! Test clients: HTTP/1.1 over a socket, so that a test controls every byte, and gRPC over HTTP/2.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;
use tokio::runtime::Runtime;

/// HTTP/1.1 connection.
pub struct Client(pub TcpStream);

/// HTTP response.
#[derive(Debug)]
pub struct Reply {
    pub status: u16,
    /// Headers with lower-case names.
    pub headers: BTreeMap<String, String>,
    pub body: Vec<u8>,
}

impl Reply {
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|error| panic!("{error}: {:?}", String::from_utf8_lossy(&self.body)))
    }

    /// Returns the message of an error response, after the checks common to all error responses.
    pub fn error(&self, status: u16) -> String {
        let fields = self.json();
        let message = fields["error"].as_str().unwrap_or_else(|| panic!("{fields}")).to_owned();
        assert_eq!(self.status, status, "{message}");
        assert!(fields["code"].as_str().is_some_and(|code| code.starts_with('E')), "{fields}");
        message
    }

    #[track_caller]
    pub fn ok(self) -> Reply {
        assert_eq!(self.status, 200, "{}", String::from_utf8_lossy(&self.body));
        self
    }
}

impl Client {
    pub fn connect(address: SocketAddr) -> Client {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        stream.set_nodelay(true).unwrap();
        Client(stream)
    }

    pub fn send(&mut self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) {
        self.try_send(method, path, headers, body).unwrap();
    }

    pub fn try_send(&mut self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> io::Result<()> {
        let mut head = format!("{method} {path} HTTP/1.1\r\nHost: test\r\nContent-Length: {}\r\n", body.len());
        for (name, value) in headers {
            head += &format!("{name}: {value}\r\n");
        }
        head += "\r\n";
        self.0.write_all(head.as_bytes())?;
        self.0.write_all(body)
    }

    pub fn receive(&mut self) -> Reply {
        self.try_receive().unwrap()
    }

    pub fn try_receive(&mut self) -> io::Result<Reply> {
        let mut head = Vec::new();
        let mut byte = [0];
        while !head.ends_with(b"\r\n\r\n") {
            self.0.read_exact(&mut byte)?;
            head.push(byte[0]);
        }
        let head = String::from_utf8(head).unwrap();
        let mut lines = head.lines();
        let status = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
        let headers: BTreeMap<String, String> = lines
            .filter_map(|line| line.split_once(": "))
            .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))
            .collect();
        let length = headers.get("content-length").map_or(0, |length| length.parse().unwrap());
        let mut body = vec![0; length];
        self.0.read_exact(&mut body)?;
        Ok(Reply { status, headers, body })
    }

    pub fn request(&mut self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Reply {
        self.send(method, path, headers, body);
        self.receive()
    }

    pub fn get(&mut self, path: &str) -> Reply {
        self.request("GET", path, &[], b"")
    }

    pub fn post(&mut self, path: &str, body: &Value) -> Reply {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        self.request("POST", path, &[], body.as_bytes())
    }

    pub fn infer(&mut self, model: &str, body: &Value) -> Reply {
        self.post(&format!("/v2/models/{model}/infer"), body)
    }

    /// Sends an inference request of JSON followed by binary data.
    pub fn infer_binary(&mut self, model: &str, json: &Value, data: &[u8]) -> Reply {
        let json = json.to_string();
        let length = json.len().to_string();
        let body = [json.as_bytes(), data].concat();
        self.request(
            "POST",
            &format!("/v2/models/{model}/infer"),
            &[("inference-HEADER-content-length", &length)],
            &body,
        )
    }
}

/// Returns a float32 input as JSON.
pub fn input(name: &str, shape: &[usize], data: &[f32]) -> Value {
    json!({"name": name, "datatype": "FP32", "shape": shape, "data": data})
}

pub fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|chunk| f32::from_le_bytes(chunk.try_into().unwrap())).collect()
}

pub fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

/// gRPC error: status code and message.
#[derive(Debug, PartialEq)]
pub struct GrpcError {
    pub code: u32,
    pub message: String,
}

/// Calls a method of the inference service.
pub fn call<A: Message, B: Message + Default>(address: SocketAddr, method: &str, request: &A) -> Result<B, GrpcError> {
    call_with(address, &format!("/inference.GRPCInferenceService/{method}"), &[], frame(&request.encode_to_vec()))
}

/// Prefixes a message with the compression flag and the length.
pub fn frame(message: &[u8]) -> Vec<u8> {
    let mut frame = BytesMut::new();
    frame.put_u8(0);
    frame.put_u32(message.len() as u32);
    frame.put_slice(message);
    frame.to_vec()
}

/// Calls a method with custom headers and body bytes.
pub fn call_with<B: Message + Default>(
    address: SocketAddr,
    path: &str,
    headers: &[(&str, &str)],
    body: Vec<u8>,
) -> Result<B, GrpcError> {
    GrpcClient::connect(address).call(path, headers, body).map(|bytes| B::decode(bytes).unwrap())
}

/// gRPC connection.
pub struct GrpcClient {
    runtime: Runtime,
    sender: http2::SendRequest<Full<Bytes>>,
    address: SocketAddr,
}

impl GrpcClient {
    pub fn connect(address: SocketAddr) -> GrpcClient {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let sender = runtime.block_on(async {
            let stream = tokio::net::TcpStream::connect(address).await.unwrap();
            stream.set_nodelay(true).unwrap();
            let mut builder = http2::Builder::new(TokioExecutor::new());
            builder.initial_stream_window_size(1 << 24).initial_connection_window_size(1 << 24);
            let (sender, connection) = builder.handshake(TokioIo::new(stream)).await.unwrap();
            tokio::spawn(connection);
            sender
        });
        GrpcClient { runtime, sender, address }
    }

    fn request(&self, path: &str, headers: &[(&str, &str)], body: Vec<u8>) -> hyper::Request<Full<Bytes>> {
        let mut request = hyper::Request::post(format!("http://{}{path}", self.address))
            .header("content-type", "application/grpc")
            .header("te", "trailers");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.body(Full::new(Bytes::from(body))).unwrap()
    }

    /// Sends a request and drops it before the response arrives, which resets the stream.
    pub fn abandon(&mut self, path: &str, body: Vec<u8>, delay: Duration) {
        let request = self.request(path, &[], body);
        let response = self.sender.send_request(request);
        self.runtime.block_on(async {
            let _ = tokio::time::timeout(delay, response).await;
            // The connection's task needs time to send the reset.
            tokio::time::sleep(Duration::from_millis(20)).await;
        });
    }

    /// Calls a method, and returns the bytes of the response.
    pub fn call(&mut self, path: &str, headers: &[(&str, &str)], body: Vec<u8>) -> Result<Bytes, GrpcError> {
        let request = self.request(path, headers, body);
        let response = self.sender.send_request(request);
        self.runtime.block_on(async {
            let response = response.await.unwrap();
            assert_eq!(response.status(), 200);
            let (parts, body) = response.into_parts();
            let body = body.collect().await.unwrap();
            let trailers = body.trailers().cloned().unwrap_or_else(|| parts.headers.clone());
            let code: u32 = trailers["grpc-status"].to_str().unwrap().parse().unwrap();
            if code != 0 {
                let message =
                    trailers.get("grpc-message").map(|text| text.to_str().unwrap().to_owned()).unwrap_or_default();
                return Err(GrpcError { code, message: percent_decoded(&message) });
            }
            let mut bytes = body.to_bytes();
            assert_eq!(bytes.get_u8(), 0);
            let length = bytes.get_u32() as usize;
            assert_eq!(length, bytes.len());
            Ok(bytes)
        })
    }
}

fn percent_decoded(text: &str) -> String {
    let mut bytes = text.bytes();
    let mut decoded_text = Vec::new();
    while let Some(byte) = bytes.next() {
        if byte == b'%' {
            let digits = [bytes.next().unwrap(), bytes.next().unwrap()];
            decoded_text.push(u8::from_str_radix(std::str::from_utf8(&digits).unwrap(), 16).unwrap());
        } else {
            decoded_text.push(byte);
        }
    }
    String::from_utf8(decoded_text).unwrap()
}

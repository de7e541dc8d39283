//! Echo server built on the libraries of the inference server: `axum` returns the body of a request, `tonic` its raw
//! contents. Its latency is a lower bound on the latency of the inference server.

use crate::Result;
use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::response::Response;
use byoc_serve::proto::{InferTensor, ModelInferRequest, ModelInferResponse};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use serde_json::json;
use std::future::Ready;
use std::io::Read;
use tokio::net::TcpListener;
use tonic::server::{Grpc, UnaryService};
use tonic_prost::ProstCodec;

/// Runs the server until the end of standard input.
pub fn run() -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(|e| e.to_string())?;
    runtime.block_on(async {
        let mut addresses = Vec::new();
        for router in [Router::new().fallback(http), Router::new().fallback(grpc)] {
            let listener = TcpListener::bind("127.0.0.1:0").await.map_err(|e| e.to_string())?;
            addresses.push(listener.local_addr().map_err(|e| e.to_string())?.to_string());
            tokio::spawn(serve(listener, router));
        }
        println!("{}", json!({"http": addresses[0], "grpc": addresses[1]}));
        let stdin_end = tokio::task::spawn_blocking(|| std::io::stdin().read_to_end(&mut Vec::new()));
        stdin_end.await.map(drop).map_err(|e| e.to_string())
    })
}

async fn serve(listener: TcpListener, router: Router) {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http2().initial_stream_window_size(1 << 20).initial_connection_window_size(4 << 20);
    while let Ok((stream, _)) = listener.accept().await {
        let _ = stream.set_nodelay(true);
        let service = TowerToHyperService::new(router.clone());
        let connection = builder.serve_connection(TokioIo::new(stream), service).into_owned();
        tokio::spawn(async move { drop(connection.await) });
    }
}

async fn http(request: Request) -> Response {
    let body = axum::body::to_bytes(request.into_body(), 64 << 20).await.unwrap_or_default();
    Response::new(Body::from(body))
}

#[derive(Clone)]
struct Echo;

impl UnaryService<ModelInferRequest> for Echo {
    type Response = ModelInferResponse;
    type Future = Ready<std::result::Result<tonic::Response<ModelInferResponse>, tonic::Status>>;

    fn call(&mut self, request: tonic::Request<ModelInferRequest>) -> Self::Future {
        let request = request.into_inner();
        let output = |input: InferTensor| InferTensor { name: "output_0".into(), ..input };
        std::future::ready(Ok(tonic::Response::new(ModelInferResponse {
            model_name: request.model_name,
            model_version: "1".into(),
            id: request.id,
            outputs: request.inputs.into_iter().map(output).collect(),
            raw_output_contents: request.raw_input_contents,
        })))
    }
}

async fn grpc(request: Request) -> Response {
    let codec = ProstCodec::<ModelInferResponse, ModelInferRequest>::default();
    let mut grpc = Grpc::new(codec).apply_max_message_size_config(Some(64 << 20), Some(64 << 20));
    grpc.unary(Echo, request).await.map(Body::new)
}

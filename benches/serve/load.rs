//! Load generation: sequential requests, concurrent clients, or requests at a fixed rate.

use crate::Result;
use crate::client::{Grpc, Http, INFER};
use crate::numbers::micros;
use crate::processes::Server;
use bytes::Bytes;
use rustix::thread::set_current_timer_slack;
use std::num::NonZeroU64;
use std::sync::Barrier;
use std::time::{Duration, Instant};

/// Request that a connection sends repeatedly during a measurement.
#[derive(Clone)]
pub enum Exchange {
    Http { request: Bytes },
    Grpc { message: Bytes },
}

/// Connection over which one request is sent repeatedly.
pub enum Connection {
    Http(Http, Bytes),
    Grpc(Grpc, Bytes),
}

impl Connection {
    /// Connects to a server.
    pub fn open(server: &Server, exchange: &Exchange) -> Result<Connection> {
        Ok(match exchange {
            Exchange::Http { request } => {
                Connection::Http(Http::connect(server.http).map_err(|e| e.to_string())?, request.clone())
            }
            Exchange::Grpc { message } => Connection::Grpc(Grpc::connect(server.grpc)?, message.clone()),
        })
    }

    /// Sends the request and receives the response.
    pub fn exchange(&mut self) -> Result<()> {
        match self {
            Connection::Http(client, request) => {
                let reply = client.exchange(request).map_err(|e| e.to_string())?;
                if reply.status == 200 {
                    return Ok(());
                }
                Err(format!(
                    "expected status 200, found {}: {}",
                    reply.status,
                    String::from_utf8_lossy(client.body(reply))
                ))
            }
            Connection::Grpc(client, message) => client.exchange(INFER, message.clone()).map(drop),
        }
    }

    /// Sends the request and returns the binary data of the response.
    pub fn answer(&mut self) -> Result<Vec<u8>> {
        match self {
            Connection::Http(client, request) => {
                let reply = client.exchange(request).map_err(|e| e.to_string())?;
                Ok(client.data(reply).to_vec())
            }
            Connection::Grpc(client, message) => {
                let response = client.exchange(INFER, message.clone())?;
                let response: byoc_serve::proto::ModelInferResponse =
                    prost::Message::decode(response).map_err(|e: prost::DecodeError| e.to_string())?;
                Ok(response.raw_output_contents.first().map(|bytes| bytes.to_vec()).unwrap_or_default())
            }
        }
    }

    /// Returns the latencies, in microseconds, of `count` sequential requests.
    pub fn latencies(&mut self, count: usize) -> Result<Vec<f64>> {
        (0..count)
            .map(|_| {
                let start = Instant::now();
                self.exchange()?;
                Ok(micros(start.elapsed()))
            })
            .collect()
    }
}

/// Result of a run with concurrent clients: responses per second, and latencies in microseconds.
pub struct Measurement {
    pub rate: f64,
    /// Latencies from the scheduled time of each request, which include its wait for a late response to the previous
    /// request.
    pub latencies: Vec<f64>,
    /// Latencies from the time at which each request was sent.
    pub response_times: Vec<f64>,
}

/// Runs `count` clients for the duration `time`. Each client sends a request after the response to its previous
/// request, and no earlier than `interval` after the previous request's scheduled time.
pub fn clients(
    server: &Server,
    exchange: &Exchange,
    count: usize,
    time: Duration,
    interval: Option<Duration>,
) -> Result<Measurement> {
    let barrier = Barrier::new(count);
    let outcomes: Vec<Result<(Vec<[f64; 2]>, Duration)>> = std::thread::scope(|scope| {
        let run = |number: usize| {
            let barrier = &barrier;
            move || {
                let connection_result = Connection::open(server, exchange);
                // By default, Linux may end a sleep 50 us late, which is longer than most requests take.
                let exact_sleep = set_current_timer_slack(NonZeroU64::new(1)).map_err(|e| e.to_string());
                barrier.wait();
                exact_sleep?;
                let (mut connection, mut latencies, start) = (connection_result?, Vec::new(), Instant::now());
                let mut deadline = start + interval.unwrap_or_default().mul_f64(number as f64 / count as f64);
                while start.elapsed() < time {
                    let now = Instant::now();
                    if interval.is_some() && deadline > now {
                        std::thread::sleep(deadline - now);
                    }
                    // If the client slept until the scheduled time, its latency is measured from the actual send,
                    // because the client may wake late. If it was waiting for a response, the latency is measured from
                    // the scheduled time.
                    let sent = Instant::now();
                    let from = if deadline > now || interval.is_none() { sent } else { deadline };
                    connection.exchange()?;
                    latencies.push([micros(from.elapsed()), micros(sent.elapsed())]);
                    deadline += interval.unwrap_or_default();
                }
                Ok((latencies, start.elapsed()))
            }
        };
        let threads: Vec<_> = (0..count).map(|number| scope.spawn(run(number))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(|_| Err("a client panicked".into()))).collect()
    });
    let (mut all, mut longest) = (Vec::new(), Duration::ZERO);
    for outcome in outcomes {
        let (latencies, took) = outcome?;
        all.extend(latencies);
        longest = longest.max(took);
    }
    let rate = all.len() as f64 / longest.as_secs_f64();
    let (latencies, response_times) = all.into_iter().map(|[latency, response_time]| (latency, response_time)).unzip();
    Ok(Measurement { rate, latencies, response_times })
}

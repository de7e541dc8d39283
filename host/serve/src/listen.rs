//! Accept loop for HTTP and gRPC connections, with limits on their number and on the time without progress.

use crate::error::{Result, ServeError, Status};
use crate::threads::Threads;
use axum::Router;
use byoc_ir::diag::codes::serving::ADDRESS;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::{Instant, Sleep};

/// Connection limits and counters.
#[derive(Debug)]
pub struct Connections {
    /// Maximum number of open connections.
    pub max_open: usize,
    /// Maximum time without traffic in either direction.
    pub idle_timeout: Duration,
    /// Maximum time for which a write may block because the client does not read.
    pub write_timeout: Duration,
    /// Time limit for requests in progress at shutdown.
    pub shutdown_timeout: Duration,
    /// Number of open connections.
    pub open_count: AtomicUsize,
    /// Number of connections closed because of the limit.
    pub refused_count: AtomicU64,
}

/// Listens on an address: a local port, or `HOST:PORT`; `None` for `none`.
///
/// # Errors
/// If the address is invalid or in use.
pub async fn listen(flag: &str, address: &str) -> Result<Option<TcpListener>> {
    if address == "none" {
        return Ok(None);
    }
    let address_error =
        |reason: String| ServeError::new(Status::InvalidArgument, ADDRESS, format!("--{flag} {address}: {reason}"));
    let addresses: Vec<SocketAddr> = match address.parse::<u16>() {
        Ok(port) => vec![SocketAddr::from(([127, 0, 0, 1], port))],
        Err(_) => address
            .to_socket_addrs()
            .map_err(|error| address_error(format!("expected a port, a resolvable HOST:PORT or none: {error}")))?
            .collect(),
    };
    let listener = TcpListener::bind(&addresses[..]).await;
    listener.map(Some).map_err(|error| match error.kind() {
        io::ErrorKind::AddrInUse => {
            address_error("expected a free port, found a port in use by another process".to_owned())
        }
        _ => address_error(format!("cannot listen: {error}")),
    })
}

/// Serves connections until `stop` changes, and then waits up to the shutdown limit for requests in progress.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    limits: Arc<Connections>,
    threads: Arc<Threads>,
    mut stop: watch::Receiver<bool>,
) {
    let mut connection_builder = auto::Builder::new(TokioExecutor::new());
    connection_builder.http1().timer(TokioTimer::new()).header_read_timeout(limits.idle_timeout);
    connection_builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(256)
        .initial_stream_window_size(1 << 20)
        .initial_connection_window_size(4 << 20)
        .max_header_list_size(64 << 10);
    let graceful = GracefulShutdown::new();
    loop {
        let accept_result = tokio::select! {
            accept_result = listener.accept() => accept_result,
            // The only change of the value is the shutdown signal.
            _ = stop.changed() => break,
        };
        let Ok((stream, _)) = accept_result else {
            // If the descriptors are exhausted, accepting again without a delay would be a busy loop.
            tokio::time::sleep(Duration::from_millis(20)).await;
            continue;
        };
        if limits.open_count.fetch_add(1, Ordering::Relaxed) >= limits.max_open {
            limits.open_count.fetch_sub(1, Ordering::Relaxed);
            limits.refused_count.fetch_add(1, Ordering::Relaxed);
            continue;
        }
        let _ = stream.set_nodelay(true);
        let open_connection = OpenConnection(limits.clone());
        // The stream is detached from this runtime, because the connection's thread registers it with its own runtime.
        let (Ok(stream), Some(place)) = (stream.into_std(), threads.place()) else { continue };
        let service = TowerToHyperService::new(router.clone());
        let (connection_builder, watcher, limits) = (connection_builder.clone(), graceful.watcher(), limits.clone());
        place.runtime.clone().spawn(async move {
            let _guards = (open_connection, place);
            let Ok(stream) = TcpStream::from_std(stream) else { return };
            let stream = TimedStream::new(stream, limits.idle_timeout, limits.write_timeout);
            let connection = connection_builder.serve_connection(TokioIo::new(stream), service).into_owned();
            // A connection error affects only its client.
            let _ = watcher.watch(connection).await;
        });
    }
    drop(listener);
    let _ = tokio::time::timeout(limits.shutdown_timeout, graceful.shutdown()).await;
}

struct OpenConnection(Arc<Connections>);

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.0.open_count.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Stream that fails if it makes no progress within a time limit.
struct TimedStream {
    stream: TcpStream,
    idle_timeout: Duration,
    write_timeout: Duration,
    /// Time of the last byte in either direction.
    last_progress: Instant,
    /// Start time of the pending write, if any.
    pending_write_start: Option<Instant>,
    timer: Pin<Box<Sleep>>,
}

impl TimedStream {
    fn new(stream: TcpStream, idle_timeout: Duration, write_timeout: Duration) -> TimedStream {
        let now = Instant::now();
        TimedStream {
            stream,
            idle_timeout,
            write_timeout,
            last_progress: now,
            pending_write_start: None,
            timer: Box::pin(tokio::time::sleep(idle_timeout)),
        }
    }

    /// Fails if `end` has passed; otherwise, schedules a wakeup of the task at `end`.
    fn check(&mut self, context: &mut Context<'_>, end: Instant) -> Poll<io::Result<()>> {
        if Instant::now() >= end {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        // The timer is reset only if it fires or is set later than `end`, so that a read does not modify the timer.
        if self.timer.deadline() > end {
            self.timer.as_mut().reset(end);
        }
        while self.timer.as_mut().poll(context).is_ready() {
            if Instant::now() >= end {
                return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
            }
            self.timer.as_mut().reset(end);
        }
        Poll::Pending
    }

    fn record_write(
        &mut self,
        byte_count: Poll<io::Result<usize>>,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        match byte_count {
            Poll::Ready(byte_count) => {
                self.pending_write_start = None;
                self.last_progress = Instant::now();
                Poll::Ready(byte_count)
            }
            Poll::Pending => {
                let write_start = *self.pending_write_start.get_or_insert_with(Instant::now);
                match self.check(context, write_start + self.write_timeout) {
                    Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
                    _ => Poll::Pending,
                }
            }
        }
    }
}

impl AsyncRead for TimedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match Pin::new(&mut self.stream).poll_read(context, buffer) {
            Poll::Ready(read) => {
                self.last_progress = Instant::now();
                Poll::Ready(read)
            }
            Poll::Pending => {
                let end = self.last_progress + self.idle_timeout;
                self.check(context, end)
            }
        }
    }
}

impl AsyncWrite for TimedStream {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let byte_count = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.record_write(byte_count, context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffers: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let byte_count = Pin::new(&mut self.stream).poll_write_vectored(context, buffers);
        self.record_write(byte_count, context)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

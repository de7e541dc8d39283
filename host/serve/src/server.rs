//! Startup and shutdown of the server.

use crate::app::App;
use crate::error::{Result, ServeError, Status};
use crate::listen::{self, Connections};
use crate::loader::Loader;
use crate::log::{self, LogControl};
use crate::options::Options;
use crate::repository::Repository;
use crate::shared_memory::Regions;
use crate::threads::{self, MAX_THREADS, Threads};
use crate::{grpc, http};
use byoc_ir::diag::codes::{runtime, serving};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// Running server.
pub struct Server {
    app: Arc<App>,
    /// Runtime that accepts connections and waits for signals.
    runtime: Runtime,
    threads: Arc<Threads>,
    stop: watch::Sender<bool>,
    tasks: Vec<JoinHandle<()>>,
    /// Signals that end the server. They are caught from its start, so that they also end the loading of models.
    signals: Mutex<[Signal; 2]>,
    /// Address of the HTTP endpoint.
    pub http: Option<SocketAddr>,
    /// Address of the gRPC endpoint.
    pub grpc: Option<SocketAddr>,
    /// Address of the separate metrics endpoint.
    pub metrics: Option<SocketAddr>,
}

impl Server {
    /// Starts a server, and waits until every model is loaded or has failed to load.
    ///
    /// # Errors
    /// If the options are invalid, or the server cannot listen on an address.
    pub fn start(options: &Options) -> Result<Server> {
        let server = Server::open(options)?;
        threads::join(server.app.loader.take_threads(), Duration::MAX);
        Ok(server)
    }

    /// Opens the ports, and starts serving and loading the models. Until they are loaded, the server is live but not
    /// ready.
    ///
    /// # Errors
    /// If the options are invalid, or the server cannot listen on an address.
    pub fn open(options: &Options) -> Result<Server> {
        let log_control = Arc::new(LogControl::new(options.log_verbose));
        log::install(&log_control, options.log_format);
        raise_descriptors();
        let models = options.named_models()?;
        if models.is_empty() && options.repository.is_none() {
            let message = "expected models or --repository DIR, found neither; \"byoc serve --help\" has examples";
            return Err(ServeError::new(Status::InvalidArgument, serving::SERVE_OPTIONS, message));
        }
        if [&options.http, &options.grpc].iter().all(|address| *address == "none") {
            let message = "expected an address for --http or --grpc, found none for both";
            return Err(ServeError::new(Status::InvalidArgument, serving::SERVE_OPTIONS, message));
        }
        let repository = Repository::new(options.engine()?, &models, options.repository.clone())?;
        let connections = Arc::new(Connections {
            max_open: options.max_connections as usize,
            // A connection has no traffic while it waits for a response, and this wait must not count as idle time.
            idle_timeout: options.idle_timeout.max(options.timeout + Duration::from_secs(1)),
            write_timeout: options.timeout,
            shutdown_timeout: options.shutdown_timeout,
            open_count: AtomicUsize::new(0),
            refused_count: AtomicU64::new(0),
        });
        let app = Arc::new(App {
            repository,
            regions: Regions::new(options.allow_shared_memory),
            log: log_control,
            connections: connections.clone(),
            allows_control: options.allow_control,
            timeout: options.timeout,
            max_request_size: options.max_request_size,
            is_started: AtomicBool::new(false),
            is_stopping: AtomicBool::new(false),
            next_request_id: AtomicU64::new(1),
            loader: Loader::default(),
        });
        let threads = std::thread::available_parallelism().map_or(1, usize::from).min(MAX_THREADS);
        let threads = Arc::new(Threads::start(threads)?);
        let runtime =
            Builder::new_multi_thread().worker_threads(1).thread_name("serve-accept").enable_all().build().map_err(
                |error| {
                    let message = format!("cannot start the thread that accepts connections: {error}");
                    ServeError::new(Status::Internal, runtime::NO_THREADS, message)
                },
            )?;
        let signals = {
            let _context = runtime.enter();
            let signals = signal(SignalKind::terminate()).and_then(|term| Ok([term, signal(SignalKind::interrupt())?]));
            Mutex::new(signals.map_err(|error| {
                ServeError::new(Status::Internal, serving::SERVE_OPTIONS, format!("cannot wait for signals: {error}"))
            })?)
        };
        let (stop, stop_receiver) = watch::channel(false);
        let routers = [
            ("http", &options.http, http::router(app.clone())),
            ("grpc", &options.grpc, grpc::router(app.clone())),
            ("metrics", &options.metrics, http::metrics_router(app.clone())),
        ];
        let mut listeners = Vec::new();
        let mut addresses = [None; 3];
        for ((flag, address, router), address_slot) in routers.into_iter().zip(&mut addresses) {
            if let Some(listener) = runtime.block_on(listen::listen(flag, address))? {
                *address_slot = listener.local_addr().ok();
                listeners.push((listener, router));
            }
        }
        let serve = |(listener, router)| {
            runtime.spawn(listen::serve(listener, router, connections.clone(), threads.clone(), stop_receiver.clone()))
        };
        let tasks = listeners.into_iter().map(serve).collect();
        let [http, grpc, metrics] = addresses;
        let server = Server { app, runtime, threads, stop, tasks, signals, http, grpc, metrics };
        let address_text =
            |address: Option<SocketAddr>| address.map_or_else(|| "none".to_owned(), |address| address.to_string());
        tracing::info!(target: "byoc::serve", http = address_text(http), grpc = address_text(grpc), metrics = address_text(metrics), "listening");
        let app = server.app.clone();
        server.app.loader.spawn("load", move || {
            app.repository.load_all();
            app.is_started.store(true, Ordering::Relaxed);
            tracing::info!(target: "byoc::serve", models = ?app.repository.names(), ready = app.is_ready(), "started");
        })?;
        Ok(server)
    }

    /// Waits for SIGTERM or Ctrl-C.
    pub fn wait_for_signal(&self) {
        let mut signals = self.signals.lock().unwrap_or_else(PoisonError::into_inner);
        let [terminate, interrupt] = &mut *signals;
        self.runtime.block_on(async {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
        });
    }

    /// Closes the ports, cancels loads, finishes the requests in progress up to the shutdown limit, and joins the
    /// threads.
    pub fn stop(self) {
        /// Time for which threads may go on after their work has been cancelled.
        const JOIN_LIMIT: Duration = Duration::from_secs(3);
        tracing::info!(target: "byoc::serve", loading = ?self.app.repository.loading(), "stopping");
        self.app.is_stopping.store(true, Ordering::Relaxed);
        self.app.repository.cancel_loads();
        let _ = self.stop.send(true);
        self.runtime.block_on(async {
            for task in self.tasks {
                let _ = task.await;
            }
        });
        // Cancels the runs that exceeded the shutdown limit.
        self.app.repository.engine().session.cancel.set(true);
        self.runtime.shutdown_timeout(Duration::from_secs(1));
        let mut threads = Arc::into_inner(self.threads).map(Threads::close).unwrap_or_default();
        threads.extend(self.app.repository.ready_models().iter().flat_map(|model| model.scheduler.close()));
        threads.extend(self.app.loader.take_threads());
        let running_count = threads::join(threads, JOIN_LIMIT);
        if running_count > 0 {
            tracing::warn!(target: "byoc::serve", threads = running_count, "the process ends without threads that go on although their work was cancelled");
        }
        tracing::info!(target: "byoc::serve", "stopped");
    }
}

/// Raises the soft limit on open descriptors to the hard limit, because each connection needs a descriptor.
fn raise_descriptors() {
    let descriptor_limit = getrlimit(Resource::Nofile);
    let _ =
        setrlimit(Resource::Nofile, Rlimit { current: descriptor_limit.maximum, maximum: descriptor_limit.maximum });
}
